"""HTML that cannot be broken from inside, figures as people read them, and charts as SVG."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from laneway.pipeline.report.charts import LogScale, Mark, Series, bar, colours, nice_ticks, spread, stack, timeline
from laneway.pipeline.report.markup import Html, count, duration, join, moment, percent, printable, shortened, tag


def test_text_is_escaped_and_markup_is_not() -> None:
    assert tag("p", "a < b & ", tag("b", "c")) == "<p>a &lt; b &amp; <b>c</b></p>"
    assert tag("p", ["one", None, [tag("br"), "two"]]) == "<p>one<br>two</p>"
    assert join("<script>", Html("<i>")) == "&lt;script&gt;<i>"


def test_attributes_are_escaped_and_left_out_when_they_are_none() -> None:
    assert tag("a", "x", href='"><script>', hidden=True, title=None, class_="c") == (
        '<a href="&quot;&gt;&lt;script&gt;" hidden class="c">x</a>'
    )
    assert tag("g", aria_label="l", stroke_width=2) == '<g aria-label="l" stroke-width="2"></g>'
    assert tag("rect", x=1) == '<rect x="1"/>'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain äöü 漢字 😀", "plain äöü 漢字 😀"),
        ("two\nlines\there", "two\nlines\there"),
        ("bell\x07 and \x1b[31mred", "bell\\x07 and \\x1b[31mred"),
        ("nul\x00", "nul\\x00"),
        ("turned \u202egnp.exe", "turned \\u202egnp.exe"),
        ("half \ud800 of a pair", "half \\ud800 of a pair"),
        ("none\u200bwide", "none\\u200bwide"),
    ],
)
def test_what_cannot_be_seen_is_shown_as_its_code(text: str, shown: str) -> None:
    assert printable(text) == shown
    shown.encode()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((None, "–"), (float("nan"), "–"), (float("inf"), "–"), (0, "0"), (0.123456, "0.123"), (12.5, "12.5")),
        *((999, "999"), (9_999, "9,999"), (10_000, "10 k"), (12_345, "12.3 k"), (999_700, "1 M"), (-20_000, "-20 k")),
        *((4_560_000, "4.56 M"), (7.2e9, "7.2 G"), (2**63, "9,223 P"), (1e30, "1,000,000,000,000,000 P")),
    ],
)
def test_counts_are_short(value: float | None, shown: str) -> None:
    assert count(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        *((None, "–"), (0, "0 ms"), (0.0123, "12.3 ms"), (0.9999, "1 s"), (3.21, "3.21 s"), (59.99, "1 min")),
        *((303, "5 min 3 s"), (7_800, "2 h 10 min"), (7_200, "2 h"), (615_600, "7 d 3 h"), (86_400 * 400.5, "400 d")),
        *((-90, "−1 min 30 s"), (float("inf"), "–")),
    ],
)
def test_durations_have_two_units(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        *((None, "–"), (0.0, "0 %"), (1.0, "100 %"), (0.5, "50 %"), (0.8975, "89.8 %"), (0.999, "99.9 %")),
        *((0.99999, "99.999 %"), (0.9999999999, "> 99.9999 %"), (1e-9, "< 0.0001 %"), (0.00004, "0.004 %")),
    ],
)
def test_a_share_is_never_all_unless_it_is(share: float | None, shown: str) -> None:
    assert percent(share) == shown


def test_moments_are_utc_with_or_without_a_zone() -> None:
    assert moment(datetime(2026, 11, 16, 18, 5, 9)) == "2026-11-16 18:05"
    assert moment(datetime(2026, 11, 16, 18, 5, 9, tzinfo=UTC), seconds=True) == "2026-11-16 18:05:09"
    assert moment(None) == "–"


def test_long_text_is_cut_with_a_sign() -> None:
    assert (shortened("abcdef", 6), shortened("abcdefg", 6)) == ("abcdef", "abcde…")


# --- charts

START = datetime(2026, 11, 16, 18, 0, tzinfo=UTC)


def times(count: int) -> list[datetime]:
    return [START + timedelta(seconds=at) for at in range(count)]


@pytest.mark.parametrize(
    ("highest", "ticks"),
    [(0, [0, 1]), (1, [0, 0.25, 0.5, 0.75, 1]), (97, [0, 25, 50, 75, 100]), (3, [0, 1, 2, 3]), (float("nan"), [0, 1])],
)
def test_ticks_are_round_and_reach_the_top(highest: float, ticks: list[float]) -> None:
    assert nice_ticks(highest) == pytest.approx(ticks)


@pytest.mark.parametrize("highest", [1e-9, 0.07, 1, 12, 999, 1e6, 3e15])
def test_ticks_are_few_and_never_below_the_highest(highest: float) -> None:
    ticks = nice_ticks(highest)
    assert 3 <= len(ticks) <= 6 and ticks[0] == 0 and ticks[-1] >= highest * 0.999


def test_a_line_has_its_points_where_time_and_value_put_them() -> None:
    drawn = timeline("t", times(3), [Series("orders", [0, 2, 4], "s3")])
    assert '<polyline points="0,1000 500,500 1000,0" class="s3"/>' in drawn


def test_a_line_has_gaps_where_nothing_is_known_and_a_lone_value_is_seen() -> None:
    drawn = timeline("t", times(5), [Series("orders", [4, 4, None, 4, None])])
    assert re.findall(r'points="([^"]+)"', drawn) == ["0,0 250,0", "744,0 756,0"]


def test_every_moment_tells_its_figures_when_pointed_at() -> None:
    drawn = timeline("t", times(2), [Series("a", [1, None]), Series("b", [2, 3])])
    titles = re.findall(r"<title>([^<]*)</title>", drawn)
    assert titles == ["2026-11-16 18:00:00 UTC\na: 1\nb: 2", "2026-11-16 18:00:01 UTC\nb: 3"]


def test_a_mark_is_drawn_and_always_inside() -> None:
    drawn = timeline("t", times(2), [Series("a", [1, 1])], marks=[Mark("objective", 30)])
    assert "objective" in drawn and max(map(float, re.findall(r' y1="([0-9.]+)"', drawn))) <= 210


def test_a_single_moment_and_nothing_at_all_can_be_drawn() -> None:
    assert "<polyline" in timeline("t", times(1), [Series("a", [1])])
    assert "nothing to draw" in timeline("t", [], [])
    assert "<polyline" in timeline("t", times(2), [Series("a", [0, 0])])


def test_names_in_charts_are_escaped() -> None:
    hostile = "</title><script>alert(1)</script>"
    for drawn in (
        timeline(hostile, times(2), [Series(hostile, [1, 2])], marks=[Mark(hostile, 1)]),
        bar(0.5, label=hostile),
    ):
        assert "<script" not in drawn and "&lt;script" in drawn


def test_bars_stay_inside_their_cell() -> None:
    assert 'width="100%"' in bar(7.0, mark=3.0) and 'x1="100%"' in bar(7.0, mark=3.0)
    assert 'width="0%"' in bar(float("nan"))
    widths = [
        float(width) for width in re.findall(r'width="([0-9.]+)%" height="12"', stack([(0.7, "s0"), (0.7, "s1")]))
    ]
    assert widths == [70, 30]


def test_a_log_scale_has_room_for_all_and_zero_stands_at_its_left_end() -> None:
    scale = LogScale.around([3, 0, 4_500])
    assert (scale.lowest, scale.highest) == (1, 10_000)
    assert [scale.share(value) for value in (0, 1, 100, 10_000, 1e9)] == pytest.approx([0, 0, 0.5, 1, 1])
    assert LogScale.around([]).share(1) == 0
    drawn = spread([("p99", 100), ("p50", None)], 10, scale)
    assert drawn.count("<circle") == 1 and 'cx="50%"' in drawn and 'x1="25%"' in drawn


def test_colours_run_out_into_one_for_the_rest() -> None:
    found = colours([f"q{at}" for at in range(10)])
    assert (found["q0"], found["q7"], found["q8"], found["q9"]) == ("s0", "s7", "rest", "rest")
