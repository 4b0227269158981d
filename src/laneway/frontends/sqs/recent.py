"""What this process knows about messages of late, by their numbers: no more than a help, and bounded."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import md5

_NOBODY = b"\xff" * 8  # where nothing is known yet: no message has this number


class Recent:
    """A few bytes about each message, as many for one as for another, in a ring: a message pushes out the one whose
    number is `count` less. Neighbours are noted and found together, without a step of Python for each."""

    def __init__(self, count: int, width: int) -> None:
        self._count = count
        self._width = width
        self._numbers = array("Q", _NOBODY * count)  # whom the value in the same place is about
        self._values = bytearray(count * width)

    def note(self, numbers: Sequence[int], values: bytes) -> None:
        """Values one behind the other, in the order of the numbers."""
        width, size = self._width, len(numbers)
        at = numbers[0] % self._count
        if size == 1:
            self._numbers[at] = numbers[0]
            self._values[at * width : (at + 1) * width] = values
            return
        if at + size <= self._count:
            column, neighbours = array("Q", numbers), range(numbers[0], numbers[0] + size)
            if numbers == neighbours or column == array("Q", neighbours):
                self._numbers[at : at + size] = column
                self._values[at * width : (at + size) * width] = values
                return
        for place, number in enumerate(numbers):
            at = number % self._count
            self._numbers[at] = number
            self._values[at * width : (at + 1) * width] = values[place * width : (place + 1) * width]

    def get(self, number: int) -> bytes | None:
        at = number % self._count
        return bytes(self._values[at * self._width : (at + 1) * self._width]) if self._numbers[at] == number else None

    def get_neighbours(self, numbers: Sequence[int]) -> bytes | None:
        """Their values one behind the other; None if they do not follow one another, or not all are known."""
        at = numbers[0] % self._count
        end = at + len(numbers)
        if self._numbers[at:end] != array("Q", numbers):
            return None
        return bytes(self._values[at * self._width : end * self._width])


class Md5s:
    """The MD5s that senders were told, so that those who receive the messages soon cost none of their own."""

    def __init__(self, count: int) -> None:
        self._known = Recent(count, _MD5.digest_size)

    def note(self, numbers: Sequence[int], digests: bytes) -> None:
        self._known.note(numbers, digests)

    def of_neighbours(self, numbers: Sequence[int]) -> list[str] | None:
        """Those of messages that follow one another, if all are known: then SQS sent them all, so they are text."""
        known = self._known.get_neighbours(numbers)
        return None if known is None else md5_texts(known)

    def of(self, numbers: Sequence[int], bodies: Sequence[bytes]) -> list[str]:
        """Those of messages, by their numbers and bodies."""
        get = self._known.get
        return [
            (md5_of(body) if (known := get(number)) is None else known).hex()
            for number, body in zip(numbers, bodies, strict=True)
        ]


_MD5 = md5(usedforsecurity=False)  # making one from scratch takes longer than copying it


def md5_of(body: bytes) -> bytes:
    digest = _MD5.copy()
    digest.update(body)
    return digest.digest()


def md5_texts(digests: bytes) -> list[str]:
    """MD5s that stand one behind the other, as they are told."""
    return digests.hex("\n", _MD5.digest_size).split("\n")
