"""Everything that comes in lumps made small, so that a few dozen messages fill slabs, chunks and segments."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from unittest import mock

SLAB_BITS = 4
SLAB_MASK = (1 << SLAB_BITS) - 1

# module -> constants; those in SHARED are looked for everywhere, because others import them by value.
SMALL: dict[str, dict[str, object]] = {
    "laneway.core.lane": {"CHUNK_ROWS": 8, "STALE_SLACK": 4},
    "laneway.core.table": {"_ZEROS_8": bytes(8 << SLAB_BITS)},
    "laneway.core.snapshot": {"SLABS_PER_CHUNK": 2},
    "laneway.core.tenants": {"STALE_HEADS": 3},
    "laneway.core.clockwork": {"TICK_MESSAGES": 7},
    "laneway.core.purging": {"SLICE": 12, "_SLAB_COST": 2, "_QUEUE_COST": 1},
    "laneway.broker.upkeep": {
        "DEAD_EXTENTS": 2,
        "LOOK_EVERY_COMMITS": 6,
        "SPARSE_BYTES_PER_RECORD": 400,
        "SPARSE_SHARE": 0.5,
        "SLABS_PER_STEP": 1,
        "RECORDS_PER_STEP": 3,
        "FINAL_SNAPSHOT_EVENTS": 10,
    },
    "laneway.broker.peeking": {"READ_BATCH": 3},
    "laneway.journal.history.scan": {"PIECE_BYTES": 1 << 12},
    "laneway.journal.history.snapshots": {"PIECE_BYTES": 1 << 9},
    "laneway.journal.segments.writer": {"FILL_BYTES": 700, "FILL_AFTER_COMMITS": 5},
}
SHARED = {
    "SLAB_BITS": SLAB_BITS,
    "SLAB_ROWS": 1 << SLAB_BITS,
    "SLAB_MASK": SLAB_MASK,
    "NOISY_LEASES": 2,
    "NOISY_PERCENT": 30,
}


@contextlib.contextmanager
def small_parts() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, constants in SMALL.items():
            stack.enter_context(mock.patch.multiple(sys.modules[name], **constants))
        for name, module in list(sys.modules.items()):
            if name.startswith("laneway."):
                shared = {constant: value for constant, value in SHARED.items() if hasattr(module, constant)}
                if shared:
                    stack.enter_context(mock.patch.multiple(module, **shared))
        yield
