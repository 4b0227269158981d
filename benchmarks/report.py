"""From rounds to a report: medians, their spread, ratios taken round by round; a table for people, JSON for programs.

Machines are noisy, and two systems measured minutes apart were measured on two machines. So systems take turns within
each round, a ratio is formed within a round, and the claim is the median of the ratios.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent / "results"
_BLOCK = "<!-- {}: begin -->\n{}<!-- {}: end -->"


class Figure(NamedTuple):
    """What one turn of one system came to."""

    case: str
    system: str
    unit: str
    value: float
    notes: dict[str, float]


@dataclass
class Series:
    """One figure of one system, measured in several rounds."""

    case: str
    system: str
    unit: str
    rounds: list[float] = field(default_factory=list)
    notes: dict[str, list[float]] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


@dataclass
class Goal:
    """What a figure should reach: of one system alone, or beside another's in the same case, or in another one. With no
    bound it is there for comparison."""

    case: str
    system: str
    at_least: float | None = None
    below: float | None = None
    beside: str | None = None
    beside_case: str | None = None


class Report:
    """`is_wide`: a row for each case and a column for each system; otherwise a row for each of both, with notes."""

    def __init__(self, name: str, machine: dict[str, object], *, is_wide: bool = False) -> None:
        self.name = name
        self.machine = machine
        self.is_wide = is_wide
        self.series: list[Series] = []
        self.goals: list[Goal] = []
        self._trial: list[Figure] | None = None

    @contextmanager
    def trying(self) -> Iterator[list[Figure]]:
        """What is added meanwhile is not part of the report yet: whoever tries decides whether to keep it."""
        self._trial = figures = []
        try:
            yield figures
        finally:
            self._trial = None

    def add(self, case: str, system: str, unit: str, value: float, **notes: float) -> None:
        self.keep(Figure(case, system, unit, value, notes))

    def keep(self, figure: Figure) -> None:
        if self._trial is not None:
            self._trial.append(figure)
            return
        case, system, unit, value, notes = figure
        series = self.find(case, system)
        if series is None:
            series = Series(case, system, unit)
            self.series.append(series)
        series.rounds.append(value)
        for key, number in notes.items():
            series.notes.setdefault(key, []).append(number)

    def find(self, case: str, system: str) -> Series | None:
        return next((one for one in self.series if (one.case, one.system) == (case, system)), None)

    def ratios(self, goal: Goal) -> list[float]:
        """Of this goal's figure to the one beside it, in every round."""
        ours = self.find(goal.case, goal.system)
        theirs = self.find(goal.beside_case or goal.case, goal.beside or goal.system)
        if ours is None or theirs is None:
            return []
        return [a / b for a, b in zip(ours.rounds, theirs.rounds, strict=False)]

    def verdicts(self) -> list[tuple[Goal, float, bool]]:
        """(goal, the figure, reached) of every goal that was measured."""
        found = []
        for goal in self.goals:
            series = self.find(goal.case, goal.system)
            if goal.beside is not None:
                ratios = self.ratios(goal)
                value = statistics.median(ratios) if ratios else None
            else:
                value = series.median if series else None
            if value is None:
                continue
            reached = (goal.at_least is None or value >= goal.at_least) and (goal.below is None or value < goal.below)
            found.append((goal, value, reached))
        return found

    def markdown(self) -> str:
        machine = ", ".join(f"{key} {value}" for key, value in self.machine.items())
        lines = [f"Measured {time.strftime('%Y-%m-%d')} on: {machine}.", ""]
        verdicts = self.verdicts()
        lines += self._wide_rows(verdicts) if self.is_wide else self._rows()
        others = [one for one in verdicts if not (self.is_wide and _is_between_systems(one[0]))]
        if others:
            lines += ["", "| to reach | figure | |", "|---|---:|---|"]
        for goal, value, reached in others:
            what = f"{goal.case}: {goal.system}"
            if goal.beside is not None:
                what += f" ÷ {goal.beside}" if goal.beside_case is None else f" ÷ {goal.beside_case}"
            if aim := _aim(goal):
                what += f", {aim}"
            lines.append(f"| {what} | {self._figure(goal, value)} | {_verdict(goal, reached)} |")
        return "\n".join(lines)

    def _rows(self) -> list[str]:
        lines = ["| case | system | median | spread | |", "|---|---|---:|---:|---|"]
        for one in self.series:
            spread = f"{_number(min(one.rounds))} – {_number(max(one.rounds))}" if len(one.rounds) > 1 else ""
            notes = ", ".join(
                f"{key.replace('_', ' ')} {_number(statistics.median(values))}" for key, values in one.notes.items()
            )
            lines.append(f"| {one.case} | {one.system} | {_number(one.median)} {one.unit} | {spread} | {notes} |")
        return lines

    def _wide_rows(self, verdicts: list[tuple[Goal, float, bool]]) -> list[str]:
        systems = list(dict.fromkeys(one.system for one in self.series))
        found = {(goal.case, goal.beside): (goal, value, reached) for goal, value, reached in verdicts}
        besides = [
            one for one in systems if any(_is_between_systems(goal) and goal.beside == one for goal, _, _ in verdicts)
        ]
        head = ["case", *systems, *(column for one in besides for column in (f"÷ {one}", "aim", ""))]
        lines = [f"| {' | '.join(head)} |", "|---" + "|---:" * len(systems) + "|---:|---|---" * len(besides) + "|"]
        for case in dict.fromkeys(one.case for one in self.series):
            figures = [self.find(case, system) for system in systems]
            cells = [case, *(f"{_number(one.median)} {one.unit}" if one else "" for one in figures)]
            for beside in besides:
                if (case, beside) not in found:
                    cells += ["", "", ""]
                    continue
                goal, value, reached = found[case, beside]
                cells += [self._figure(goal, value), _aim(goal), _verdict(goal, reached)]
            lines.append(f"| {' | '.join(cells)} |")
        return lines

    def _figure(self, goal: Goal, value: float) -> str:
        if goal.beside is None:
            return _number(value)
        ratios = self.ratios(goal)
        return f"{value:.2f}× ({min(ratios):.2f} – {max(ratios):.2f})"

    def save(self) -> Path:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
        path.write_text(self.json() + "\n")
        return path

    def json(self) -> str:
        verdicts = [{**asdict(goal), "value": value, "reached": reached} for goal, value, reached in self.verdicts()]
        content = {"machine": self.machine, "series": [asdict(one) for one in self.series], "goals": verdicts}
        return json.dumps({"report": self.name, **content}, indent=1)

    def write_into(self, page: Path) -> None:
        """Put the table between this report's marks in a page, in place of the one before."""
        text = page.read_text()
        pattern = re.compile(_BLOCK.format(self.name, ".*?", self.name), re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"{page} has no marks for {self.name}")
        block = _BLOCK.format(self.name, self.markdown() + "\n", self.name)
        page.write_text(pattern.sub(lambda _: block, text))


def _is_between_systems(goal: Goal) -> bool:
    return goal.beside is not None and goal.beside_case is None


def _aim(goal: Goal) -> str:
    unit = "" if goal.beside is None else "×"
    if goal.at_least is not None:
        return f"at least {_number(goal.at_least)}{unit}"
    return "" if goal.below is None else f"below {_number(goal.below)}{unit}"


def _verdict(goal: Goal, reached: bool) -> str:
    if goal.at_least is None and goal.below is None:
        return "for comparison"
    return "reached" if reached else "**missed**"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percentile(ordered: list[int], share: float) -> int:
    """The smallest value that at least this share of all values does not exceed."""
    return ordered[math.ceil(len(ordered) * share) - 1]
