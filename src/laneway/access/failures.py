"""Logins that fail: how often they may, by address, and what the log says of them.

A wrong password costs tens of milliseconds of a core, so whoever sends them pays from a budget of their own, which
fills up again with time. There is one for each account name that an address tries, so that one client with a wrong
password does not lock out its neighbours, and a larger one for the address itself, so that many names help nobody.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable

import msgspec

from laneway.access.accounts import AccessLimits
from laneway.errors import TooManyLogins
from laneway.telemetry.floods import FloodLog

log = logging.getLogger("laneway.access")

_MOST_BUDGETS = 20_000
_SHOWN_CHARS = 100

_Key = tuple[str, str | None]  # an address with a name, or with all names


class Origin(msgspec.Struct, frozen=True):
    """Where a login comes from, and how."""

    way: str = "in this process"  # in which it proves who it is: "HTTP Basic", "AMQP PLAIN" …
    peer: str = "somewhere"  # the other end of the connection, for the log
    address: str = ""  # of whoever asks, as far as trusted proxies tell


class FailedLogins:
    def __init__(self, limits: AccessLimits, floods: FloodLog, elapsed_ms: Callable[[], int]) -> None:
        self._limits = limits
        self._floods = floods
        self._elapsed_ms = elapsed_ms
        self.used: dict[_Key, tuple[float, int]] = {}  # failures, and when that was so

    def check(self, origin: Origin, name: str) -> None:
        """Raise if this address may not try this name now; nothing was done for it then."""
        while self.used and not self._now_used(next(iter(self.used))):  # forgiven
            del self.used[next(iter(self.used))]
        for key, most in self._budgets(origin, name):
            if key in self.used and self._now_used(key) > most - 1:
                self._log(origin, "logins not looked at", name, "too many failed before it")
                raise TooManyLogins(
                    "too many logins from your address failed: try again in some seconds, with the right credentials"
                )

    def begin(self, origin: Origin, name: str) -> None:
        """A check that costs something begins: it counts as failed until it succeeds."""
        self.check(origin, name)
        self._count(origin, name, 1)

    def succeeded(self, origin: Origin, name: str) -> None:
        self._count(origin, name, -1)

    def failed(self, origin: Origin, name: str, why: str, *, is_counted: bool = False) -> None:
        if not is_counted:
            self._count(origin, name, 1)
        self._log(origin, "refused logins", name, why)

    def _log(self, origin: Origin, kind: str, name: str, why: str) -> None:
        self._floods.say(
            log,
            logging.WARNING,
            kind,
            _source(origin.address) or origin.peer,
            "login refused: %s from %s as %r: %s",
            origin.way,
            origin.peer,
            name[:_SHOWN_CHARS],
            why,
        )

    def _count(self, origin: Origin, name: str, change: int) -> None:
        for key, most in self._budgets(origin, name):
            # Not more than there is: who went on failing is let in as soon as who stopped.
            used = min(float(most), max(0.0, self._now_used(key) + change))
            self.used.pop(key, None)  # to its end, so that the oldest stand in front
            if used:
                if len(self.used) >= _MOST_BUDGETS:
                    del self.used[next(iter(self.used))]
                self.used[key] = used, self._elapsed_ms()

    def _budgets(self, origin: Origin, name: str) -> tuple[tuple[_Key, int], tuple[_Key, int]]:
        """Those that a login is counted in, with how much there is of each."""
        limits, source = self._limits, _source(origin.address)
        return ((source, name[:_SHOWN_CHARS]), limits.failures_per_name), ((source, None), limits.failures_per_address)

    def _now_used(self, key: _Key) -> float:
        used, at_ms = self.used.get(key, (0.0, 0))
        forgiven_ms = self._limits.failure_of_address_ms if key[1] is None else self._limits.failure_of_name_ms
        return max(0.0, used - (self._elapsed_ms() - at_ms) / forgiven_ms) if used else 0.0


def _source(address: str) -> str:
    """An address; of IPv6 the network that one customer has."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address, 64), strict=False))
    except ValueError:
        return address
