"""A server of several processes: the parent, which holds the ports and the data folder, and starts again what dies.

It has no loop and no thread, so that it can fork whenever a process is to be started. With each child it shares a pair
of sockets, on which both say where they are, a line of JSON each:

    child ─▶ parent   {"is": "open"}                       its partitions are recovered, all others are reached
                      {"is": "ready", "addresses": …}      it listens
                      {"is": "refused", "message": …}      it cannot start, and never will with these settings
                      {"is": "reloaded", "changed": …}     settings that it has changed
                      {"is": "drained"}                    no client is left; others may still need its partitions
    parent ─▶ child   {"do": "listen"}                     all were open once
                      {"do": "close"}                      nobody needs its partitions any more
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from laneway.config import Address, Config
from laneway.errors import LanewayError, StartError
from laneway.first_admin import FirstAdmin
from laneway.frontends.doors.listening import REUSED, bind
from laneway.logs import announce, set_up_logging
from laneway.node.doors import cannot_listen, listening, where_served
from laneway.node.folder import DataFolder
from laneway.node.node import Seat
from laneway.node.process import run_child
from laneway.node.storage import storage_at, storage_of, wanted_count

log = logging.getLogger("laneway.node")

#: Before a process that died is started again, the first time and the next ones.
PAUSES_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
#: One that was ready for so long did not die at once: the next time it is the first time.
LONG_S = 60.0

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_PR_SET_PDEATHSIG = 1


class Child:
    """A process, as its parent knows it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid = 0  # 0: it does not run
        self.control: socket.socket | None = None
        self.received = b""
        self.state = "starting"  # open, ready, drained
        self.is_told_to_listen = False
        self.addresses: dict[str, Address] = {}
        self.deaths = 0  # without having been ready for long
        self.ready_s = 0.0  # since when, if it is
        self.starts_s = 0.0  # when it is started next

    def say(self, what: str) -> None:
        if self.control is not None:
            with suppress(OSError):  # it is about to be seen dead
                self.control.sendall(msgspec.json.encode({"do": what}) + b"\n")

    def signal(self, number: int) -> None:
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Supervisor:
    def __init__(
        self,
        config: Config,
        read_config: Callable[[], Config] | None = None,
        first_admin: FirstAdmin | None = None,
    ) -> None:
        self._config = config  # as it is in force: what the next process starts with
        self._read_config = read_config
        self._first_admin = first_admin
        self._folder = DataFolder(config.data)
        self._children = [Child(number) for number in range(config.processes)]
        self._selector = selectors.DefaultSelector()
        self._held: list[socket.socket] = []
        self._ports: dict[str, int] = {}
        self._lock = -1
        self._were_open = False  # all of them, once
        self._is_announced = False
        self._is_stopping = False
        self._refusal: LanewayError | None = None
        self._exit_codes: list[int] = []  # of those that ended while stopping
        self._woken, self._wakes = socket.socketpair()

    def run(self) -> int:
        """The exit code of the server."""
        set_up_logging(self._config.log_level, self._config.log_format)
        self._lock = self._folder.lock()
        try:
            self._folder.check_journal_unlocked()
            storage = storage_of(self._config)
            count = wanted_count(storage, self._config.partitions, self._config.processes)
            storage.make_partitions(count)
            storage.close()  # the children must not inherit connections
            if count < len(self._children):
                log.warning(
                    "%d of %d processes lead no partition, as there are %d: they take clients and pass on what these "
                    "ask for. --partitions %d gives each one",
                    len(self._children) - count,
                    len(self._children),
                    count,
                    len(self._children),
                )
            self._hold_ports()
            self._seat = Seat(
                process_count=len(self._children), sockets=self._folder.make_sockets_folder(), ports=self._ports
            )
            self._take_signals()
            gc.collect()
            gc.freeze()  # the children share what is here now
            self._supervise()
        finally:
            self._folder.remove_sockets()
            for held in self._held:
                held.close()
            os.close(self._lock)
        if self._refusal is not None:
            raise self._refusal
        return max(self._exit_codes, default=0)

    # Ports

    def _hold_ports(self) -> None:
        """Bound and not listening, so that each child can listen there, and no other server while one is away."""
        for setting, address in listening(self._config).items():
            try:
                self._held += asyncio.run(_hold(address))
            except OSError as trouble:
                raise cannot_listen(setting, address, trouble) from None
            self._ports[setting] = self._held[-1].getsockname()[1]

    # The loop

    def _take_signals(self) -> None:
        self._woken.setblocking(False)
        self._wakes.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, _noted)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def _supervise(self) -> None:
        while True:
            now_s = time.monotonic()
            waiting = [] if self._is_stopping else [child for child in self._children if not child.pid]
            for child in waiting:
                if child.starts_s <= now_s:
                    self._start(child)
            if self._is_stopping and not any(child.pid for child in self._children):
                return
            pauses_s = [child.starts_s - now_s for child in waiting if not child.pid]
            for key, _ in self._selector.select(min(pauses_s, default=None)):
                if key.fileobj is self._woken:
                    self._take(self._woken.recv(4096))
                elif key.fileobj is key.data.control:  # it may have been buried just now
                    self._listen_to(key.data)

    def _take(self, numbers: bytes) -> None:
        for number in dict.fromkeys(numbers):
            if number == signal.SIGCHLD:
                self._bury()
            elif number == signal.SIGHUP:
                for child in self._children:
                    child.signal(signal.SIGHUP)
            elif not self._is_stopping:
                log.info("stopping")
                self._stop()

    def _stop(self) -> None:
        self._is_stopping = True
        for child in self._children:
            child.signal(signal.SIGTERM)
        self._close_when_drained()

    # Children

    def _start(self, child: Child) -> None:
        own, childs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            own.close()
            self._be(child.number, childs, parent)
        childs.close()
        own.setblocking(False)
        self._selector.register(own, selectors.EVENT_READ, child)
        child.pid, child.control, child.received = pid, own, b""
        child.state, child.is_told_to_listen, child.ready_s = "starting", False, 0.0

    def _be(self, number: int, control: socket.socket, parent: int) -> None:
        """In the child, which never comes back."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for each in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(each, signal.SIG_DFL)
            for each in (signal.SIGHUP, signal.SIGINT):
                signal.signal(each, signal.SIG_IGN)
            os.setpgid(0, 0)  # what a terminal sends, it sends to the parent alone
            _end_with(parent)
            for inherited in (self._woken, self._wakes, *self._held):
                inherited.close()
            for child in self._children:
                if child.control is not None:
                    child.control.close()
            self._selector.close()
            os.close(self._lock)
            seat = msgspec.structs.replace(self._seat, process=number)
            code = run_child(self._config, self._read_config, self._first_admin, seat, control)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _listen_to(self, child: Child) -> None:
        assert child.control is not None
        try:
            data = child.control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up(child)
            return
        *lines, child.received = (child.received + data).split(b"\n")
        for line in lines:
            said = msgspec.json.decode(line)
            self._hear(child, said.pop("is"), said)

    def _hang_up(self, child: Child) -> None:
        if child.control is not None:
            self._selector.unregister(child.control)
            child.control.close()
            child.control = None

    def _hear(self, child: Child, state: str, said: dict[str, Any]) -> None:
        if state == "refused":
            if not self._is_announced:
                self._refuse(said)
            else:
                log.error("process %d cannot start: %s", child.number, said["message"])
        elif state == "reloaded":
            self._follow_reload(said["changed"])
        else:
            child.state = state
            if state == "ready":
                child.ready_s = time.monotonic()
                child.addresses = {name: Address(*where) for name, where in said["addresses"].items()}
            self._go_on()

    def _go_on(self) -> None:
        children = self._children
        self._were_open = self._were_open or all(child.state in ("open", "ready") for child in children)
        for child in children:
            if self._were_open and child.state == "open" and not child.is_told_to_listen:
                child.is_told_to_listen = True
                child.say("listen")
            elif child.state == "drained" and not self._is_stopping:
                child.say("close")
        if not self._is_announced and all(child.state == "ready" for child in children):
            self._is_announced = True
            config = self._config
            announce(
                config.log_format, f"Laneway serves {where_served(children[0].addresses)} from {storage_at(config)}"
            )
        self._close_when_drained()

    def _close_when_drained(self) -> None:
        """A process is needed as long as another has clients: they may ask for what it leads."""
        if self._is_stopping and all(child.state == "drained" or not child.pid for child in self._children):
            for child in self._children:
                child.say("close")

    def _refuse(self, said: dict[str, Any]) -> None:
        if self._refusal is None:
            self._refusal = StartError(said["message"], field=said["field"], **said["details"])
            self._refusal.code = said["code"]
            self._stop()

    def _follow_reload(self, changed: list[str]) -> None:
        """A process that is started later begins with what the others have by then."""
        if self._read_config is None:
            return
        try:
            fresh = self._read_config()
        except LanewayError as refusal:
            log.error("the settings cannot be read: %s", refusal)
            return
        self._config = msgspec.structs.replace(self._config, **{name: getattr(fresh, name) for name in changed})
        set_up_logging(self._config.log_level, self._config.log_format)

    def _bury(self) -> None:
        for child in self._children:
            if not child.pid:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                while child.control is not None:
                    self._listen_to(child)  # its last words
                self._ended(child, os.waitstatus_to_exitcode(status))
        self._close_when_drained()

    def _ended(self, child: Child, code: int) -> None:
        pid, child.pid = child.pid, 0
        if self._is_stopping:
            self._exit_codes.append(abs(code) if child.state == "drained" else int(code > 0))
            return
        now_s = time.monotonic()
        if child.ready_s and now_s - child.ready_s >= LONG_S:
            child.deaths = 0
        pause_s = PAUSES_S[min(child.deaths, len(PAUSES_S) - 1)]
        child.deaths += 1
        child.starts_s = now_s + pause_s
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        when = f"in {pause_s:g} s" if pause_s else "now"
        log.error("process %d (%d) %s; it is started again %s", child.number, pid, how, when)


async def _hold(address: Address) -> list[socket.socket]:
    """Sockets of this server's own, at a port where nobody else listens: a shared one would let both in."""
    free = await bind(address.host, address.port)
    port = free[0].getsockname()[1]
    for found in free:
        found.close()
    shared = (socket.SO_REUSEPORT,)
    try:
        return await bind(address.host, port, shared)
    except OSError:  # connections of an earlier server that was one process: they go within a minute
        return await bind(address.host, port, (*REUSED, *shared))


def _end_with(parent: int) -> None:
    """A child must not outlive its parent, or half a server would hold the journals."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _noted(number: int, frame: object) -> None:
    """It wakes the loop."""
