"""Parts of batches that are staged and not committed: one file each in a folder of their own, which a start empties.

Nothing here is synced: as long as the process lives the files are as good as memory, and no longer are they used. Who
may stage and what a commit does with it is for producers.py to say; limits of size, number and age are kept here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from laneway.broker.values import Addressed, StagingLimits, Target
from laneway.errors import (
    BatchTooLarge,
    Conflict,
    DiskFull,
    LimitExceeded,
    OutOfDescriptors,
    PartsMissing,
    Unavailable,
)


class Part(msgspec.Struct, frozen=True):
    path: Path
    byte_count: int
    message_count: int
    targets: frozenset[Target]


class Stage(msgspec.Struct):
    """What one writer has staged and not committed."""

    owner: str
    touched_ms: int
    parts: dict[str, Part] = {}
    arriving: int = 0  # parts that are being written


StageKey = tuple[str, str]  # producer, name of the stage

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Addressed]).decode


class Staging:
    def __init__(self, folder: Path | None, limits: StagingLimits) -> None:
        self._folder = folder
        self._stages: dict[StageKey, Stage] = {}
        self._byte_count = 0
        self._file_count = 0
        self.limits = limits

    def start(self) -> None:
        """What an earlier process has staged was never promised to anybody."""
        if self._folder is not None and self._folder.is_dir():
            for path in self._folder.iterdir():
                if path.is_file():
                    path.unlink()

    def find(self, key: StageKey) -> Stage | None:
        return self._stages.get(key)

    def of_producer(self, producer: str) -> list[Stage]:
        return [stage for key, stage in self._stages.items() if key[0] == producer]

    async def put(
        self,
        key: StageKey,
        name: str,
        messages: Sequence[Addressed],
        targets: Iterable[Target],
        owner: str,
        now_ms: int,
    ) -> Part:
        """Keep a part; one of the same name is replaced, so that a request may be repeated."""
        if self._folder is None:
            raise Unavailable("this node has no folder to stage in")
        data = _encode(messages)
        stage = self._begin(key, name, len(data), owner, now_ms)
        self._file_count += 1
        part = Part(self._folder / f"{self._file_count:012d}", len(data), len(messages), frozenset(targets))
        self._byte_count += part.byte_count
        stage.arriving += 1
        try:
            await asyncio.to_thread(_write, part.path, data)
        except BaseException as trouble:
            self._forget([part])
            if isinstance(trouble, OSError):
                raise (_out_of_descriptors(trouble) or DiskFull(f"the part cannot be kept: {trouble}")) from None
            raise
        finally:
            stage.arriving -= 1
        if self._stages.get(key) is not stage:
            self._forget([part])
            raise Conflict(f"stage {key[1]!r} was committed or given up while part {name!r} arrived", field="stage")
        replaced = stage.parts.get(name)
        stage.parts[name] = part
        if replaced is not None:
            self._forget([replaced])
        return part

    def _begin(self, key: StageKey, name: str, size: int, owner: str, now_ms: int) -> Stage:
        limits = self.limits
        if size > limits.max_batch_bytes:
            raise BatchTooLarge(f"the part has {size} bytes, a batch has {limits.max_batch_bytes} at most")
        if self._byte_count + size > limits.max_bytes:
            raise LimitExceeded(
                f"{self._byte_count} bytes are staged already, {limits.max_bytes} are allowed; commit or give up some"
            )
        stage = self._stages.get(key)
        if stage is None:
            if len(self._stages) >= limits.max_stages:
                raise LimitExceeded(f"{limits.max_stages} stages are open already; commit or give up some")
            stage = self._stages[key] = Stage(owner, now_ms)
        if name not in stage.parts and len(stage.parts) + stage.arriving >= limits.max_parts:
            raise LimitExceeded(f"a stage has {limits.max_parts} parts at most; make them larger", field="part")
        stage.touched_ms = now_ms
        return stage

    def named(self, key: StageKey, names: Sequence[str]) -> list[Part]:
        """These parts of a stage; PartsMissing if one is not there, BatchTooLarge if they are too much for a batch."""
        stage = self._stages.get(key)
        there = {} if stage is None else stage.parts
        missing = [name for name in names if name not in there]
        if missing:
            shown = ", ".join(map(repr, missing[:3])) + (" …" if len(missing) > 3 else "")
            raise PartsMissing(
                f"{len(missing)} of {len(names)} parts are not staged under {key[1]!r} ({shown}): a restart of the "
                f"server, {self.limits.lifetime_ms // 1000} seconds without news, or another commit end what is "
                "staged; stage the batch again",
                field="parts",
                missing=missing[:100],
            )
        parts = [there[name] for name in names]
        messages, size = sum(part.message_count for part in parts), sum(part.byte_count for part in parts)
        if messages > self.limits.max_batch_messages or size > self.limits.max_batch_bytes:
            raise BatchTooLarge(
                f"the batch has {messages} messages and {size} bytes; {self.limits.max_batch_messages} and "
                f"{self.limits.max_batch_bytes} are allowed, because it is published in one commit"
            )
        return parts

    async def read(self, parts: Sequence[Part]) -> list[Addressed]:
        """All messages of these parts, in order. PartsMissing if one was given up meanwhile."""
        try:
            return await asyncio.to_thread(_read, [part.path for part in parts])
        except FileNotFoundError:
            raise PartsMissing("the stage was committed or given up meanwhile", field="stage") from None
        except OSError as trouble:
            raise (_out_of_descriptors(trouble) or trouble) from None

    def drop(self, key: StageKey) -> bool:
        """Forget a stage with all its parts; whether there was one."""
        stage = self._stages.pop(key, None)
        if stage is None:
            return False
        self._forget(list(stage.parts.values()))
        return True

    def drop_idle(self, now_ms: int) -> int | None:
        """Forget what nobody has added to for too long; in how many milliseconds to come again, None for never."""
        lifetime_ms = self.limits.lifetime_ms
        for key, stage in list(self._stages.items()):
            if stage.touched_ms + lifetime_ms <= now_ms and not stage.arriving:
                self.drop(key)
        if not self._stages:
            return None
        return max(1, min(stage.touched_ms for stage in self._stages.values()) + lifetime_ms - now_ms)

    def _forget(self, parts: Sequence[Part]) -> None:
        self._byte_count -= sum(part.byte_count for part in parts)
        for part in parts:
            with contextlib.suppress(OSError):
                part.path.unlink()


def _out_of_descriptors(trouble: OSError) -> OutOfDescriptors | None:
    if trouble.errno in (errno.EMFILE, errno.ENFILE):
        return OutOfDescriptors(f"no file can be opened for the moment ({trouble.strerror}); try again in a moment")
    return None


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
    finally:
        os.close(file)


def _read(paths: Sequence[Path]) -> list[Addressed]:
    messages: list[Addressed] = []
    for path in paths:
        messages += _decode(path.read_bytes())
    return messages
