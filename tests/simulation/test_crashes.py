"""Thousands of seeds: each a few lives of a node that ends badly, and everything that must hold after every start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from .simulator import run_seed
from .small import small_parts

SEEDS = 3_000
PART = 100


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_nothing_confirmed_is_lost_and_nothing_settled_comes_back(first: int) -> None:
    with small_parts():
        for seed in range(first, first + PART):
            run_seed(seed)


def test_the_seeds_reach_every_kind_of_moment() -> None:
    counts: Counter[str] = Counter()
    with small_parts():
        for seed in range(150):
            simulation = run_seed(seed)
            counts.update(simulation.counts)
            counts.update(simulation.ends)
    wanted = {
        *("crash", "kill", "stop", "fail", "power lost", "crash while starting", "forgiven"),
        *("snapshot", "dropped segment", "prepared", "relocated", "torn tail", "refused, disk full", "refused, stale"),
        *("published", "leased", "acked", "released", "extended", "dead_lettered", "moved", "removed"),
        *("queue_put", "queue_deleted", "queue_purged", "key_remembered", "document_put", "document_removed"),
        *("pushed", "got", "columns", "not acked", "session transact", "session hang_up", "session settle_stale"),
        *("columns for several", "session own", "session raise_limit", "session cancel", "read back"),
        *("acks by token", "acks of a run", "leased again", "withdrawn", "peek", "produced", "produced again"),
        *("exchange_put", "exchange_deleted", "bound", "unbound"),
        *("cursor", "refused, history_gone", "refused, conflict", "jump"),
    }
    assert not wanted - {name for name, count in counts.items() if count}


def test_a_seed_is_the_same_run_every_time() -> None:
    """In another process with another hash seed, too: else a failure could not be looked at."""
    here = []
    with small_parts():
        for seed in range(12):
            simulation = run_seed(seed)
            here.append((simulation.operation_count, simulation.clock.us, len(simulation.ledger.lease_ids)))
    program = (
        "from tests.simulation.simulator import run_seed; from tests.simulation.small import small_parts\n"
        "with small_parts():\n"
        "    runs = [run_seed(seed) for seed in range(12)]\n"
        "print([(s.operation_count, s.clock.us, len(s.ledger.lease_ids)) for s in runs])"
    )
    there = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert there.stdout.strip() == str(here)
