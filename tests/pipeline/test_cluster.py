"""Several processes: the data source on executors of its own, as on a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.pipeline.drivers import ROOT, environment
from tests.pipeline.histories import expected, write
from tests.pipeline.traffic import traffic


@pytest.mark.timeout(240)
def test_two_executors_read_one_journal_together(tmp_path: Path) -> None:
    write(tmp_path, traffic(12), segment_bytes=64 << 10)
    ran = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.cluster_job", str(tmp_path)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=230,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    rows = expected(tmp_path)
    counts = Counter(row["kind"] for row in rows)
    assert found["kinds"] == {
        kind: [count, sum(row["message"] or 0 for row in rows if row["kind"] == kind)] for kind, count in counts.items()
    }
    assert found["processes"] == 2
