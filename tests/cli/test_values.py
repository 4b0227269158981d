"""Values as people write and read them: durations, sizes, attributes, tables."""

from __future__ import annotations

import io

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.cli import kinds, show
from laneway.cli.session import Failure


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("1.5", 1.5), ("500ms", 0.5), ("30s", 30), ("15m", 900), ("12h", 43_200), ("7d", 604_800)],
)
def test_durations(text: str, seconds: float) -> None:
    assert kinds.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1x", "m", "1 2", "1e3", "nan", "inf"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        kinds.duration(text)


@pytest.mark.parametrize(
    ("text", "count"), [("0", 0), ("1k", 1024), ("64KiB", 65_536), ("10 MB", 10 << 20), ("1g", 1 << 30)]
)
def test_sizes(text: str, count: int) -> None:
    assert kinds.size(text) == count


@pytest.mark.parametrize("text", ["", "-1", "1.5k", "kb", "1x", "none"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        kinds.size(text)


def test_none_is_understood_where_it_may_be_said() -> None:
    assert kinds.size_or_none("none") == kinds.duration_or_none("none") == kinds.number_or_none("none") == "none"
    assert (kinds.size_or_none("1k"), kinds.duration_or_none("1m"), kinds.number_or_none("-3")) == (1024, 60, -3)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("eu", "eu"),
        ("5", 5),
        ("-5", -5),
        ("0.25", 0.25),
        ("true", True),
        ("false", False),
        ('"5"', "5"),
        ('""', ""),
        ("", ""),
        ("007", "007"),
        ("1.2.3", "1.2.3"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
    ],
)
def test_attributes_are_taken_as_they_are_meant(text: str, value: object) -> None:
    taken = kinds.attribute_value(text)
    assert taken == value and type(taken) is type(value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0s"),
        (0.25, "0.25s"),
        (59.94, "59.9s"),
        (60, "1m"),
        (303, "5m 3s"),
        (7_800, "2h 10m"),
        (604_800, "7d"),
    ],
)
def test_durations_are_shown_for_people(seconds: float | None, text: str) -> None:
    assert show.duration(seconds) == text


@given(st.integers(0, 10**9))
def test_a_duration_as_shown_is_right_to_its_smallest_unit(seconds: int) -> None:
    shown = sum(kinds.duration(part) for part in show.duration(seconds).split())
    assert shown <= seconds + 1
    assert seconds - shown < 3600 * 24 / 100 * max(1, seconds // 86_400) + 3600


def test_sizes_are_shown_for_people() -> None:
    assert [show.size(count) for count in (None, 0, 1023, 1536, 10 << 20)] == [
        "-",
        "0 B",
        "1023 B",
        "1.5 KiB",
        "10 MiB",
    ]


@given(st.text())
def test_nothing_that_is_printed_can_steer_a_terminal(text: str) -> None:
    assert all(c.isprintable() for c in show.printable(text))


def test_a_table_prints_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show.print_table(("queue", "n"), [("[red]x[/red]", 5), ("bell\x07", 12)], numeric=("n",))
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["queue          n", "[red]x[/red]   5", "bell\\x07      12"]


def test_a_person_sees_the_same_cells_in_a_narrow_terminal() -> None:
    from rich.console import Console

    terminal = Console(width=40, force_terminal=True, record=True, file=io.StringIO())
    terminal.print(show.Rows(("queue", "n"), [("[red]x[/red]", 5), ("bell\x07", 12)], ("n",)).for_a_person())
    cells = [line.split() for line in terminal.export_text().splitlines()]
    assert cells == [["queue", "n"], ["[red]x[/red]", "5"], ["bell\\x07", "12"]]


def test_a_long_line_is_not_wrapped_into_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    show.print_table(("queue",), [("q" * 500,)])
    assert capsys.readouterr().out.splitlines()[1].strip() == "q" * 500


@pytest.mark.parametrize(
    ("payload", "content_type", "text"),
    [
        ({"a": 1}, "application/json", '{"a":1}'),
        ("é", "application/json", '"é"'),
        ("plain", "text/plain", "plain"),
        (b"\x00\x01", "image/png", "2 bytes of image/png"),
        (b"P1", "image/png", "2 bytes of image/png"),
        ("hello, wörld\n".encode(), "application/octet-stream", "hello, wörld\n"),
        (b"\x00\x01", "application/octet-stream", "2 bytes of application/octet-stream"),
        (b"\xff\xfe", "application/octet-stream", "2 bytes of application/octet-stream"),
        (b"", "application/octet-stream", "0 bytes of application/octet-stream"),
    ],
)
def test_payloads_in_one_line(payload: object, content_type: str, text: str) -> None:
    assert show.payload_text(payload, content_type) == text


def test_failure_that_names_what_others_chose_leaves_the_terminal_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Failure("there is no queue 'orders': did you mean orders\x1b[2J\u202e?").show()
    shown = capsys.readouterr().err
    assert shown == "laneway: there is no queue 'orders': did you mean orders\\x1b[2J\\u202e?\n"
