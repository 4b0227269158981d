"""Virtual hosts: which there are. A queue or an exchange is created only in one that exists.

A virtual host is no more than its name, kept as a document of the journal. All calls take effect at once; whoever
answers for one waits for it to be durable first, as with every other change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from laneway.broker.topology import no_vhost
from laneway.broker.values import POLICIES, Policy
from laneway.core.events import DocumentPut, DocumentRemoved, Event
from laneway.core.topology_commands import clear_exchanges
from laneway.core.world import DEFAULT_VHOST, VHOSTS
from laneway.errors import Conflict, InvalidInput, LimitExceeded

if TYPE_CHECKING:
    from laneway.broker.partition import Partition

MAX_NAME_BYTES = 255


class Vhosts:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.names = {DEFAULT_VHOST}
        self._going: set[str] = set()  # what they hold is being deleted
        self.on_deleted: list[Callable[[str], None]] = []  # told the name of one that is gone

    def start(self) -> None:
        """Take what the journal has. A queue of a store that knew no list of virtual hosts makes its own exist. Of
        several partitions the first keeps them."""
        state = self._partition.engine.state
        if state.partition:
            return
        listed = set(state.documents.get(VHOSTS, ()))
        used = {vhost for vhost, _ in state.by_name} | set(state.topology.exchanges)
        self.names = {DEFAULT_VHOST} | listed | used
        now_ms = self._partition.now()
        missing = sorted(used - listed - {DEFAULT_VHOST})
        self._partition.engine.run(DocumentPut(now_ms, VHOSTS, name, b"{}") for name in missing)

    def check(self, name: str) -> None:
        state = self._partition.engine.state
        if name not in (state.world.vhosts if state.partition else self.names):
            raise no_vhost(name)

    def create(self, name: str) -> bool:
        """Whether it is new; one that exists stays as it is."""
        if name in self._going:
            raise Conflict(f"virtual host {name!r} is being deleted; create it again when it is gone", field="vhost")
        if name in self.names:
            return False
        check_vhost_name(name)
        partition = self._partition
        partition.begin_change(adds=True)
        most = partition.limits.max_vhosts
        if len(self.names) >= most:
            raise LimitExceeded(f"there are {len(self.names)} virtual hosts already, {most} are allowed", field="vhost")
        partition.engine.run(iter([DocumentPut(partition.now(), VHOSTS, name, b"{}")]))
        self.names.add(name)
        return True

    async def delete(self, name: str) -> None:
        """With its queues and all they hold, its exchanges and bindings. Nobody finds it from now on; what it holds
        goes in slices, as it may be much, and its name last: a crash in between leaves a virtual host with less in it,
        as nobody was told that it is gone."""
        self.check(name)
        if name == DEFAULT_VHOST:
            raise Conflict("the virtual host '/' always exists and cannot be deleted", field="vhost")
        partition = self._partition
        partition.begin_change(adds=False)
        self.names.discard(name)
        self._going.add(name)
        try:
            for tell in self.on_deleted:
                tell(name)
            numbers = [queue.number for (vhost, _), queue in partition.engine.state.by_name.items() if vhost == name]
            for _ in partition.queues.delete_all(numbers):
                await asyncio.sleep(0)
            partition.begin_change(adds=False)
            partition.engine.run(self._deleted(name))
        except BaseException:
            self.names.add(name)
            raise
        finally:
            self._going.discard(name)
        await partition.durable()

    def _deleted(self, name: str) -> Iterator[Event]:
        now_ms = self._partition.now()
        yield from clear_exchanges(self._partition.engine.state, name, now_ms)
        for key, document in list(self._partition.engine.state.documents.get(POLICIES, {}).items()):
            if msgspec.json.decode(document, type=Policy).vhost == name:
                yield DocumentRemoved(now_ms, POLICIES, key)
        yield DocumentRemoved(now_ms, VHOSTS, name)


def check_vhost_name(name: str) -> str:
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= MAX_NAME_BYTES:
        raise InvalidInput(
            f"the name of a virtual host has 1 to {MAX_NAME_BYTES} bytes, this one has {size}", field="vhost"
        )
    if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) <= 0xDFFF for c in name):
        raise InvalidInput(f"the name of a virtual host has no control characters: {name!r}", field="vhost")
    return name
