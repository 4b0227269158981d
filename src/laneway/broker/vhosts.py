"""Virtual hosts: which there are. A queue or an exchange is created only in one that exists.

A virtual host is no more than its name, kept as a document of the journal. All calls take effect at once; whoever
answers for one waits for it to be durable first, as with every other change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from laneway.broker.topology import DEFAULT_VHOST, VHOSTS, no_vhost
from laneway.core.events import DocumentPut, DocumentRemoved, Event, QueueDeleted
from laneway.core.queue import Queue
from laneway.core.state import queue_document
from laneway.core.topology_commands import clear_exchanges
from laneway.errors import Conflict, InvalidInput, LimitExceeded

if TYPE_CHECKING:
    from laneway.broker.partition import Partition

MAX_NAME_BYTES = 255


class Vhosts:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.names = {DEFAULT_VHOST}
        self.on_deleted: list[Callable[[str], None]] = []  # told the name of one that is gone

    def start(self) -> None:
        """Take what the journal has. A queue of a store that knew no list of virtual hosts makes its own exist."""
        state = self._partition.engine.state
        listed = set(state.documents.get(VHOSTS, ()))
        used = {vhost for vhost, _ in state.by_name} | set(state.topology.exchanges)
        self.names = {DEFAULT_VHOST} | listed | used
        now_ms = self._partition.now()
        missing = sorted(used - listed - {DEFAULT_VHOST})
        self._partition.engine.run(DocumentPut(now_ms, VHOSTS, name, b"{}") for name in missing)

    def check(self, name: str) -> None:
        if name not in self.names:
            raise no_vhost(name)

    def create(self, name: str) -> bool:
        """Whether it is new; one that exists stays as it is."""
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

    def delete(self, name: str) -> None:
        """With its queues and all they hold, its exchanges and bindings, in one step."""
        self.check(name)
        if name == DEFAULT_VHOST:
            raise Conflict("the virtual host '/' always exists and cannot be deleted", field="vhost")
        partition = self._partition
        partition.begin_change(adds=False)
        queues = [queue for (vhost, _), queue in partition.engine.state.by_name.items() if vhost == name]
        partition.engine.run(self._deleted(name, queues))
        self.names.discard(name)
        for queue in queues:
            partition.queues.forget(queue)
        for tell in self.on_deleted:
            tell(name)

    def _deleted(self, name: str, queues: Sequence[Queue]) -> Iterator[Event]:
        now_ms = self._partition.now()
        # Whether one's dead letters go to another does not matter: both go.
        yield from (QueueDeleted(queue.number, now_ms, queue_document(queue)) for queue in queues)
        yield from clear_exchanges(self._partition.engine.state, name, now_ms)
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
