"""The audit of a long history, as the command line runs it: rows a second, what CPU all its processes used, and how
much memory they held at most (each page counted once, PSS)."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.report import Report
from benchmarks.servers import ROOT

#: Reading the pages of a process with gigabytes takes tens of milliseconds of a core, and holds it up.
LOOK_EVERY_S = 1.0


class Auditing:
    def __init__(self, options: argparse.Namespace, report: Report, folder: Path) -> None:
        self._options = options
        self._report = report
        self._folder = folder

    def run(self, case: str, journal: Path) -> None:
        command = [sys.executable, "-m", "laneway", "pipeline", "run", "audit", "--json", "--source", str(journal)]
        command += ["--warehouse", str(self._folder / "warehouse")]
        if self._options.master is not None:
            command += ["--master", self._options.master]
        began = time.perf_counter()
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            peak, cpu = 0, dict[int, float]()
            while process.poll() is None:
                tree = _tree(process.pid)
                peak = max(peak, sum(map(_pss_bytes, tree)))
                cpu.update((one, used) for one in tree if (used := _cpu_seconds(one)))
                time.sleep(LOOK_EVERY_S)
            said = json.loads(process.stdout.read() if process.stdout is not None else "{}")
        seconds = time.perf_counter() - began
        verdict = said["verdict"]
        if verdict["verdict"] != "clean":
            raise SystemExit(f"bench: {case}: {verdict['violations']} violations in a history that has none")
        rows = verdict["events"] / seconds
        used, load = sum(cpu.values()), os.getloadavg()[1]
        notes = {"seconds": seconds, "cpu_seconds": used, "load": load, "peak_mb": peak / 1e6}
        self._report.add(case, "Laneway", "rows/s", rows, **notes)
        words = f"{seconds:.0f} s and {used:.0f} s of CPU at a load of {load:.1f}, {peak / 1e6:,.0f} MB at most"
        print(f"  {case:30} {'Laneway':10} {rows:14,.0f} rows/s, {words}", file=sys.stderr)


def _tree(root: int) -> list[int]:
    """A process and all that came from it."""
    found = [root]
    for process in found:
        for task in Path(f"/proc/{process}/task").glob("*"):
            try:
                found += map(int, (task / "children").read_text().split())
            except OSError:
                continue
    return found


def _cpu_seconds(process: int) -> float:
    """Of the process itself; its children are counted on their own."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pss_bytes(process: int) -> int:
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)
