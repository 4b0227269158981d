"""Ids of queues: inside its partition a queue is a number, outside it is that and the partition. Of partition 0 they
are the same, so a server of one partition knows no difference."""

from __future__ import annotations

NUMBER_BITS = 32
_NUMBERS = (1 << NUMBER_BITS) - 1


def queue_id(partition: int, number: int) -> int:
    return partition << NUMBER_BITS | number


def partition_of(queue: int) -> int:
    return queue >> NUMBER_BITS


def local_number(queue: int) -> int:
    return queue & _NUMBERS
