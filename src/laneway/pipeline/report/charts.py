"""Charts as inline SVG. Positions are shares of the width, so that a chart fits a phone and a wall alike while its
text keeps its size; only lines are drawn in a square that is stretched, with strokes that are not.

Colours are classes (s0 … s7, rest), which the style sheet knows for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from laneway.pipeline.report.markup import Html, count, join, tag

COLOURS = 8
SQUARE = 1000


@dataclass(frozen=True)
class Series:
    name: str
    values: Sequence[float | None]  # one for each time
    colour: str = "s0"


@dataclass(frozen=True)
class Mark:
    """A level to be seen against: an objective, a bound."""

    name: str
    value: float


@dataclass(frozen=True)
class Band:
    """A time to be seen as special, from the beginning of one step to the end of another."""

    name: str
    start: datetime
    end: datetime


def colours(names: Sequence[str]) -> dict[str, str]:
    """A class for each name; what comes after the colours run out is "rest"."""
    return {name: f"s{at}" if at < COLOURS else "rest" for at, name in enumerate(names)}


def timeline(
    title: str,
    times: Sequence[datetime],
    series: Sequence[Series],
    *,
    shown: Callable[[float | None], str] = count,
    marks: Sequence[Mark] = (),
    bands: Sequence[Band] = (),
    height: int = 210,
) -> Html:
    """Lines over time. Each moment has a strip that shows its figures when pointed at."""
    if not times or not series:
        return tag("p", "There is nothing to draw yet.", class_="none")
    levels = [mark.value for mark in marks]
    highest = max([value for one in series for value in one.values if value is not None] + levels, default=0.0)
    ticks = nice_ticks(highest)
    top = ticks[-1] or 1.0
    band_top, band_height = 18, height - 18 - 22

    def y(value: float) -> float:
        return band_top + band_height * (1 - value / top)

    grid = [
        join(
            tag("line", x1="0", x2="100%", y1=_n(y(tick)), y2=_n(y(tick)), class_="grid" if tick else "axis"),
            tag("text", shown(tick), x="0", y=_n(y(tick) - 4), class_="tick") if tick else None,
        )
        for tick in ticks
    ]
    lines = tag(
        "svg",
        [_line(one, times, top) for one in series],
        y=band_top,
        width="100%",
        height=band_height,
        viewBox=f"0 0 {SQUARE} {SQUARE}",
        preserveAspectRatio="none",
        class_="lines",
    )
    levels_drawn = [
        join(
            tag("line", x1="0", x2="100%", y1=_n(y(mark.value)), y2=_n(y(mark.value)), class_="mark"),
            tag("text", mark.name, x="100%", y=_n(y(mark.value) - 4), class_="tick end marked"),
        )
        for mark in marks
    ]
    strips = _strips(times, series, shown, band_top, band_height)
    label = f"{title}, from {times[0]:%H:%M:%S} to {times[-1]:%H:%M:%S} UTC"
    shaded = [_band(one, times, band_top, band_height) for one in bands]
    parts = join(shaded, grid, lines, levels_drawn, _time_labels(times, height), strips)
    return tag("svg", parts, width="100%", height=height, role="img", aria_label=label, class_="chart")


def _band(one: Band, times: Sequence[datetime], top: int, height: int) -> Html:
    left, right = (_clamped(_share(time, times)) * 100 for time in (one.start, one.end))
    where = {"x": f"{_n(left)}%", "width": f"{_n(max(right - left, 0.5))}%"}
    return tag("rect", tag("title", one.name), y=top, height=height, class_="outage", **where)


def _line(one: Series, times: Sequence[datetime], top: float) -> Html:
    """A line with gaps where there is no value; a single value is a short dash, so that it can be seen."""
    runs: list[list[str]] = [[]]
    for time, value in zip(times, one.values, strict=True):
        if value is None:
            runs.append([])
        else:
            runs[-1].append(f"{_n(_share(time, times) * SQUARE)},{_n((1 - value / top) * SQUARE)}")
    drawn = []
    for run in runs:
        if len(run) == 1:
            x, _, y = run[0].partition(",")
            run = [f"{_n(max(0.0, float(x) - 6))},{y}", f"{_n(min(float(SQUARE), float(x) + 6))},{y}"]
        if run:
            drawn.append(tag("polyline", points=" ".join(run), class_=one.colour))
    return join(*drawn)


def _strips(
    times: Sequence[datetime],
    series: Sequence[Series],
    shown: Callable[[float | None], str],
    top: int,
    height: int,
) -> Html:
    width = 100 / len(times)
    strips = []
    for at, time in enumerate(times):
        centre = _share(time, times) * 100
        lines = [f"{time:%Y-%m-%d %H:%M:%S} UTC"]
        lines += [f"{one.name}: {shown(one.values[at])}" for one in series if one.values[at] is not None]
        left = min(100 - width, max(0.0, centre - width / 2))
        strips.append(
            tag("rect", tag("title", "\n".join(lines)), x=f"{_n(left)}%", width=f"{_n(width)}%", y=top, height=height)
        )
    return tag("g", strips, class_="strips")


def _time_labels(times: Sequence[datetime], height: int) -> Html:
    """The first, the last, and what fits between; narrow screens hide the ones between."""
    first, last = times[0], times[-1]
    if first == last:
        return tag("text", f"{first:%H:%M:%S}", x="0", y=height - 4, class_="tick")
    span_s = (last - first).total_seconds()
    form = "%H:%M:%S" if span_s < 600 else "%H:%M" if span_s < 2 * 86_400 else "%b %d"
    labels = []
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        time = datetime.fromtimestamp(first.timestamp() + part * span_s, UTC)
        place = "" if part == 0 else " end" if part == 1 else " middle" if part == 0.5 else " middle between"
        labels.append(tag("text", f"{time:{form}}", x=f"{_n(part * 100)}%", y=height - 4, class_=f"tick{place}"))
    return join(*labels)


def bar(share: float, *, colour: str = "s0", mark: float | None = None, label: str = "") -> Html:
    """A bar for a cell of a table; `share` and `mark` are from 0 to 1 of the cell's width."""
    parts = [
        tag("rect", x="0", y="5", width="100%", height="10", rx="2", class_="track"),
        tag("rect", x="0", y="5", width=f"{_n(_clamped(share) * 100)}%", height="10", rx="2", class_=colour),
    ]
    if mark is not None:
        at = f"{_n(_clamped(mark) * 100)}%"
        parts.append(tag("line", x1=at, x2=at, y1="1", y2="19", class_="mark"))
    return _in_cell(parts, label)


def stack(parts: Sequence[tuple[float, str]], *, label: str = "") -> Html:
    """Bars one behind the other: (share of the width, colour) each."""
    drawn, left = [], 0.0
    for share, colour in parts:
        width = min(_clamped(share), 1 - left)
        drawn.append(
            tag("rect", x=f"{_n(left * 100)}%", y="4", width=f"{_n(width * 100)}%", height="12", class_=colour)
        )
        left += width
    return _in_cell(drawn, label)


@dataclass(frozen=True)
class LogScale:
    """Times from milliseconds to days in one picture."""

    lowest: float
    highest: float

    @classmethod
    def around(cls, values: Sequence[float]) -> LogScale:
        """Whole powers of ten around all values; what is zero stands at the left end."""
        seen = [value for value in values if value > 0 and math.isfinite(value)] or [1.0]
        low = math.floor(math.log10(min(seen)))
        return cls(10.0**low, 10.0 ** max(low + 1, math.ceil(math.log10(max(seen)))))

    def share(self, value: float) -> float:
        if value <= self.lowest:
            return 0.0
        return _clamped(math.log(value / self.lowest) / math.log(self.highest / self.lowest))


def spread(points: Sequence[tuple[str, float | None]], mark: float | None, scale: LogScale, *, label: str = "") -> Html:
    """Percentiles as dots on one line, the objective as a mark: (class, value) each."""
    placed = [(name, scale.share(value)) for name, value in points if value is not None]
    parts = [tag("line", x1="0", x2="100%", y1="10", y2="10", class_="rail")]
    if placed:
        ends = [share for _, share in placed]
        low, high = f"{_n(min(ends) * 100)}%", f"{_n(max(ends) * 100)}%"
        parts.append(tag("line", x1=low, x2=high, y1="10", y2="10", class_="span"))
    if mark is not None:
        at = f"{_n(scale.share(mark) * 100)}%"
        parts.append(tag("line", x1=at, x2=at, y1="0", y2="20", class_="mark"))
    parts += [tag("circle", cx=f"{_n(share * 100)}%", cy="10", r="5", class_=name) for name, share in placed]
    return _in_cell(parts, label)


def _in_cell(parts: Sequence[Html], label: str) -> Html:
    heard = {"role": "img", "aria_label": label} if label else {"aria_hidden": "true"}
    return tag("svg", parts, width="100%", height="20", class_="cell", **heard)


def nice_ticks(highest: float, wanted: int = 4) -> list[float]:
    """0 and round steps up to at least `highest`."""
    if not math.isfinite(highest) or highest <= 0:
        return [0.0, 1.0]
    rough = highest / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    return [step * at for at in range(math.ceil(highest / step - 1e-9) + 1)]


def _share(time: datetime, times: Sequence[datetime]) -> float:
    span = (times[-1] - times[0]).total_seconds()
    return (time - times[0]).total_seconds() / span if span else 0.5


def _clamped(share: float) -> float:
    return min(1.0, max(0.0, share)) if math.isfinite(share) else 0.0


def _n(value: float) -> str:
    """A number for an attribute, without digits that nobody sees."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"
