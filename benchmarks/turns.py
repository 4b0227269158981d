"""Who measures what and when: cases and systems that take part, their turns within each round, and turns taken again.

A virtual machine's host may give its processors to others. What it took is known (`steal` in /proc/stat), for every
system alike, and says nothing of the figure itself; so of the tries of a turn the one with the least of it counts.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks.machine import stolen_seconds
from benchmarks.report import Report

CALM = 0.05  # of one processor's time that the host may take from a turn
Turn = Callable[[], None]
Clock = Callable[[], float]


def is_chosen(case: str, options: argparse.Namespace) -> bool:
    """`--only` has parts of names, with commas between; names have commas too, but a space behind them."""
    return any(part in case for part in re.split(",(?! )", options.only))


def takes_part(peer: str, options: argparse.Namespace) -> bool:
    return options.peers == "all" or peer.lower() in options.peers.lower().split(",")


class Turns:
    def __init__(
        self,
        report: Report,
        options: argparse.Namespace,
        *,
        clock: Clock = time.perf_counter,
        stolen: Clock = stolen_seconds,
    ) -> None:
        self._report = report
        self._clock, self._stolen = clock, stolen
        self._rounds: int = options.rounds
        self._patience: int = options.patience

    def rounds(self, *cases: Sequence[Turn]) -> None:
        """Every system takes its turn at each case in every round, in alternating order so that none always goes first.
        Rounds are outermost: so two cases can be compared within a round, as two systems can."""
        for number in range(self._rounds):
            for turns in cases:
                for turn in turns if number % 2 == 0 else reversed(turns):
                    self.take(turn)

    def take(self, turn: Turn) -> None:
        tries = []
        for _ in range(1 + self._patience):
            began, stolen = self._clock(), self._stolen()
            with self._report.trying() as figures:
                turn()
            share = (self._stolen() - stolen) / (self._clock() - began)
            tries.append((share, len(tries), figures))
            if share <= CALM:
                break
            print(f"  the host took {share:.0%} of a processor from this turn", file=sys.stderr, flush=True)
        share, _, figures = min(tries)
        for figure in figures:
            self._report.keep(figure._replace(notes={**figure.notes, "stolen": share}))
