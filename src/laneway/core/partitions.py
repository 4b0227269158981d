"""Ids of queues: inside its partition a queue is a number, outside it is that and the partition. Of partition 0 they
are the same, so a server of one partition knows no difference."""

from __future__ import annotations

from binascii import crc32

NUMBER_BITS = 32
_NUMBERS = (1 << NUMBER_BITS) - 1


def queue_id(partition: int, number: int) -> int:
    return partition << NUMBER_BITS | number


def partition_of(queue: int) -> int:
    return queue >> NUMBER_BITS


def local_number(queue: int) -> int:
    return queue & _NUMBERS


def home(vhost: str, name: str, partition_count: int) -> int:
    """The partition in which a queue is made. One that is there already may be in another, if the number of partitions
    was raised since."""
    return crc32(f"{vhost}\0{name}".encode("utf-8", "surrogatepass")) % partition_count
