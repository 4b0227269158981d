"""Run seeds until one fails: `python -m tests.simulation --seeds 1000-2000`, or `--seeds 17` for just that one."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from .crossing import COUNT
from .damage import DAMAGES, run_damage_seed
from .several import run_seed_of_several
from .simulator import Failure, run_seed
from .small import small_parts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0-999", help="one seed, or FIRST-LAST")
    parser.add_argument("--damage", action="append", choices=list(DAMAGES), help="damage files instead of crashing")
    parser.add_argument(
        "--partitions", type=int, default=1, choices=(1, COUNT), help="each led by a process of its own"
    )
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    counts: Counter[str] = Counter()
    failed = 0
    started_s = time.monotonic()
    with small_parts():
        for seed in seeds:
            try:
                if arguments.damage:
                    counts.update(run_damage_seed(seed, tuple(arguments.damage)).outcomes)
                    continue
                simulation = run_seed_of_several(seed) if arguments.partitions > 1 else run_seed(seed)
            except Failure as failure:
                print(failure, file=sys.stderr)
                failed += 1
                if not arguments.keep_going:
                    return 1
                continue
            counts.update(simulation.counts)
            counts.update(simulation.ends)
            counts["lives"] += simulation.lives
    took_s = time.monotonic() - started_s
    print(f"{len(seeds)} seeds in {took_s:.1f} s, {failed} failed: {dict(counts)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
