"""What commands ask about the whole server: a partition has a share of the queues, and others have the rest.

`State.world` is the state itself where there is one partition. Where there are several, whoever follows them all sets
another one (cluster/following.py), whose queues have ids for numbers (partitions.py). Applying events never asks it:
a history must mean the same whoever reads it, and whenever.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from laneway.core.settings import QueueSettings

if TYPE_CHECKING:
    from laneway.core.exchanges import RoutingTable

#: The collection of documents that names the virtual hosts; the default one is there without.
VHOSTS = "vhosts"
DEFAULT_VHOST = "/"


class KnownQueue(Protocol):
    """What one partition knows of a queue, whichever it is in."""

    number: int  # its id
    vhost: str
    name: str
    settings: QueueSettings


class World(Protocol):
    """All queues by their ids, and what leads to them."""

    @property
    def queues(self) -> Mapping[int, KnownQueue]: ...

    @property
    def by_name(self) -> Mapping[tuple[str, str], KnownQueue]:
        """By virtual host and name."""

    @property
    def senders(self) -> Mapping[tuple[str, str], Collection[int]]:
        """The queues that name a dead-letter queue, by its virtual host and name; none is empty."""

    @property
    def routing(self) -> RoutingTable:
        """From exchanges to the ids of queues."""

    @property
    def vhosts(self) -> Collection[str]: ...

    @property
    def documents(self) -> Mapping[str, Mapping[str, bytes]]:
        """By collection and key, of the first partition."""

    @property
    def owners(self) -> Mapping[int, int]:
        """By id of a queue of another partition, the session that has it for itself alone."""

    def whereabouts(self, queue: int) -> int:
        """The id that a queue has now: another one, if it has moved to another partition."""

    def home(self, vhost: str, name: str) -> int:
        """The partition in which a queue of this name is made."""

    @property
    def is_complete(self) -> bool:
        """Whether every partition has been heard of since this process began. Until then a queue that is not known
        may be there nevertheless: what would be lost or refused because of that waits."""
