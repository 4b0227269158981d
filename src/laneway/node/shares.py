"""What one process may take up: the settings name limits of the whole server, and its processes share them evenly."""

from __future__ import annotations

import logging

import msgspec

from laneway.broker.values import BrokerLimits, StagingLimits
from laneway.config import Config
from laneway.core.dedups import DEDUP_BYTES
from laneway.resources import descriptors, memory

log = logging.getLogger("laneway.node")

#: Of messages that were published last, so that they need not be read back; at most this part of max_memory_bytes.
CACHE_BYTES = 128 * 1024 * 1024
CACHE_SHARE = 4
_LARGEST_COUNT = 2  # requests or messages of the largest size that a process takes at once, one of a stranger's


class Shares(msgspec.Struct, frozen=True):
    """Of one process. What a partition has, each of those that the process leads has."""

    connection_count: int
    handshake_count: int
    receiving_bytes: int  # of what has not come whole yet
    memory_bytes: int
    partition_file_count: int  # files of its journal that stay open for reading
    partition_cache_bytes: int


def shares_of(config: Config, process_count: int = 1, led_count: int = 1) -> Shares:
    limit = descriptors.limit_in_force()
    wanted_count = share(config.max_connections, process_count)
    found = descriptors.share_out(limit, wanted_count, handshake_count(config, process_count), led_count)
    if found.for_connections < wanted_count:
        log.warning(
            "max_connections is %d%s, and this process may open %d files: so there will be %d connections at most; "
            "raise its limit (ulimit -n, LimitNOFILE=)",
            config.max_connections,
            "" if process_count == 1 else f", {wanted_count} in each process",
            limit,
            found.for_connections,
        )
    largest_bytes = max(config.max_body_bytes, config.max_message_bytes)
    memory_bytes = config.max_memory_bytes or int(memory.available_bytes() * memory.DEFAULT_SHARE)
    memory_bytes = share(memory_bytes, process_count)
    cache_bytes = min(CACHE_BYTES, memory_bytes // CACHE_SHARE)
    return Shares(
        connection_count=found.for_connections,
        handshake_count=found.for_handshakes,
        receiving_bytes=max(share(config.max_receiving_bytes, process_count), _LARGEST_COUNT * largest_bytes),
        memory_bytes=memory_bytes,
        partition_file_count=found.for_reading,
        partition_cache_bytes=share(cache_bytes, max(led_count, 1)),
    )


def share(whole: int, count: int) -> int:
    return -(-whole // count)


def handshake_count(config: Config, process_count: int = 1) -> int:
    if config.tls_cert is None and not config.proxy_protocol:
        return 0
    return share(config.max_tls_handshakes, process_count)


def broker_limits(config: Config, partition_count: int = 1) -> BrokerLimits:
    """Of each partition."""
    history_bytes, history_ms = history_limits(config, partition_count)
    return BrokerLimits(
        max_queues=config.max_queues,
        max_message_bytes=config.max_message_bytes,
        max_idempotency_keys=share(config.idempotency_keys_max, partition_count),
        max_dedups=share(config.max_dedup_bytes // DEDUP_BYTES, partition_count),
        snapshot_events=config.snapshot_events,
        history_limit_bytes=history_bytes,
        history_ms=history_ms,
        staging=StagingLimits(max_bytes=config.max_staged_bytes, lifetime_ms=int(config.staged_seconds * 1000)),
        partition_count=partition_count,
    )


def history_limits(config: Config, partition_count: int) -> tuple[int, int]:
    """How much of it each partition keeps for readers: most bytes, and how long in any case."""
    return share(config.history_limit_bytes, partition_count), int(config.history_seconds * 1000)
