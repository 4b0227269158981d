"""Settings that change while a node runs: read again all together, and taken or refused all together.

Whoever can change without a restart says so with `on`. A reload reads the settings from where they came, lets each of
these prepare, and puts everything in force only when none of them has refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec

from laneway.config import Config, settings
from laneway.errors import LanewayError

log = logging.getLogger("laneway.node")

#: Settings whose files may say something else though they have the same name.
FILES: tuple[str, ...] = ("tls_cert", "tls_key", "tls_ca")

PutInForce = Callable[[], object]
Prepare = Callable[[Config], PutInForce]


class Reloaded(msgspec.Struct, frozen=True):
    """What a reload did: settings now in force, those that wait for a restart, and files that were read again."""

    changed: list[str]
    needs_restart: list[str]
    read_again: list[str]


class Reloading:
    def __init__(self, running: Config, read: Callable[[], Config] | None = None) -> None:
        self.running = running  # the settings in force
        self._read = read or (lambda: self.running)
        self._parts: list[tuple[frozenset[str], Prepare]] = []
        self._on_reloaded: list[Callable[[Reloaded], None]] = []

    def on(self, names: Iterable[str], prepare: Prepare) -> None:
        """These settings can change. `prepare` is called with all settings as they are to be, and checks them without
        changing anything; what it gives back puts them in force."""
        self._parts.append((frozenset(names), prepare))

    def on_reloaded(self, call: Callable[[Reloaded], None]) -> None:
        """Have this called with what each reload did."""
        self._on_reloaded.append(call)

    def reload(self) -> Reloaded:
        """ConfigInvalid: nothing has changed."""
        fresh = self._read()
        reloadable = frozenset[str]().union(*(names for names, _ in self._parts))
        differing = [s.name for s in settings() if getattr(fresh, s.name) != getattr(self.running, s.name)]
        taken = [name for name in differing if name in reloadable]
        # Of what needs a restart, the old value stays in force: parts must not see a mixture.
        kept = {name: getattr(self.running, name) for name in differing if name not in reloadable}
        wanted = msgspec.structs.replace(fresh, **kept)
        ready = [prepare(wanted) for _, prepare in self._parts]
        for put_in_force in ready:
            put_in_force()
        self.running = wanted
        files = [name for name in FILES if name in reloadable and getattr(wanted, name) is not None]
        done = Reloaded(taken, [name for name in differing if name not in reloadable], files)
        for call in self._on_reloaded:
            call(done)
        return done

    def reload_and_log(self) -> None:
        """As SIGHUP asks for it: nobody waits for an answer, so the log tells."""
        try:
            done = self.reload()
        except LanewayError as refusal:
            log.error("the settings were not reloaded, those in force stay: %s", refusal)
        except Exception:
            log.exception("the settings were not reloaded, or not all of them")
        else:
            log.info("reloaded: %s", described(done))


def described(done: Reloaded) -> str:
    parts = (
        ("changed", done.changed),
        ("read again", [name for name in done.read_again if name not in done.changed]),
        ("needs a restart", done.needs_restart),
    )
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in parts if names) or "nothing has changed"
