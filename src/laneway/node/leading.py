"""A partition that this process leads: its journal, and all that stands on it."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from laneway.broker.clock import Clock
from laneway.broker.engine import Engine
from laneway.broker.partition import Partition
from laneway.broker.values import BrokerLimits
from laneway.cluster.following import FollowedTopology
from laneway.config import Config
from laneway.journal.interface import Journal
from laneway.node.shares import Shares
from laneway.telemetry.turns import LoopTurns

log = logging.getLogger("laneway.node")

_IDLE_MS = 20


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def build_partition(
    config: Config,
    journal: Journal,
    staging_folder: Path,
    *,
    number: int = 0,
    model: FollowedTopology | None = None,
    shares: Shares,
    limits: BrokerLimits,
    turns: LoopTurns,
    on_failed: Callable[[], None],
) -> Partition:
    """`model`: of the topology of the whole server, where it has several partitions."""
    engine = Engine(
        journal,
        new_tag=lambda: 1 + secrets.randbelow((1 << 26) - 1),
        cache_bytes=shares.partition_cache_bytes,
        partition=number,
        world=model,
    )
    return Partition(
        engine,
        clock=Clock.of_machine(),
        limits=limits,
        on_failed=lambda _: on_failed(),
        idle_ms=config.sync_interval_ms if config.durability == "interval" else _IDLE_MS,
        staging_folder=staging_folder,
        turns=turns,
    )


async def start_partition(partition: Partition, name: str) -> None:
    """Recover what is in its journal, which is called so."""
    started_s = time.monotonic()
    recovery = await partition.start()
    log.info(
        "recovered %s in %.1f s: snapshot at commit %d, %d events of messages after it, epoch %d",
        name,
        time.monotonic() - started_s,
        recovery.snapshot_position,
        recovery.event_count,
        recovery.epoch,
    )
