"""Kinds of option values: durations, sizes, names with values, and text that may come from stdin."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

SECONDS = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

NONE = "none"  # on the command line; null in the API

REASONS = ("max_receives", "expired", "rejected", "overflow")  # why a message is a dead letter


def duration(text: str) -> float:
    """Seconds, or a number with ms, s, m, h, d or w."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in SECONDS:
        raise click.BadParameter(f"{text!r} is no duration: give seconds, or a number with ms, s, m, h or d, like 15m")
    return float(match[1]) * SECONDS[match[2]]


class DurationUpTo(click.ParamType[float | str]):
    """A duration with a longest value. The API has the same limit; an error here names the flag."""

    name = "duration"

    def __init__(self, most: str, *, otherwise: str = "", or_none: bool = False) -> None:
        self._most = most
        self._otherwise = otherwise  # what to use for more
        self._or_none = or_none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        if isinstance(value, float) or (self._or_none and value == NONE):
            return value  # type: ignore[no-any-return]
        try:
            seconds = duration(value)
        except click.BadParameter as wrong:
            self.fail(wrong.message, param, ctx)
        if seconds > duration(self._most):
            more = f"; {self._otherwise}" if self._otherwise else ""
            self.fail(f"{value} is too long, the most is {self._most}{more}", param, ctx)
        return seconds


class Boolean(click.types.BoolParamType):
    """click's, with an error that names the two values people use."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        if self.str_to_bool(value) is None:
            self.fail(f"{value!r} is neither true nor false", param, ctx)
        return super().convert(value, param, ctx)


boolean = Boolean()


def name(text: str) -> str:
    if not text:
        raise click.BadParameter("it is empty: give a name")
    return text


def priority(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,3}", text) or int(text) > 255:
        raise click.BadParameter(f"{text!r} is no priority: give a number from 0 to 255, a higher one goes first")
    return int(text)


def moment(text: str) -> datetime:
    """A point in time in ISO 8601. Without a zone it is meant in the zone of this machine."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is no time: give one like 2030-01-31T10:00:00Z, or like 2030-01-31T10:00 in this machine's "
            f"zone; --delay 10m counts from now"
        ) from None


def size(text: str) -> int:
    """Bytes, or a number with KiB, MiB or GiB."""
    match = re.fullmatch(r"([0-9]+)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise click.BadParameter(f"{text!r} is no size: give bytes, or a number with KiB, MiB or GiB, like 512KiB")
    return int(match[1]) * BYTES[match[2]]


def number(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise click.BadParameter(f"{text!r} is no whole number")
    return int(text)


def duration_or_none(text: str) -> float | str:
    return NONE if text == NONE else duration(text)


def size_or_none(text: str) -> int | str:
    return NONE if text == NONE else size(text)


def number_or_none(text: str) -> int | str:
    return NONE if text == NONE else number(text)


def name_or_none(text: str) -> str:
    return text


def name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


def attribute_value(text: str) -> str | int | float | bool:
    """An attribute as it was meant: a number or true/false if it looks like one, else text; quotes make it text."""
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", text):
        return int(text)
    if re.fullmatch(r"-?(0|[1-9][0-9]*)\.[0-9]+", text):
        return float(text)
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return text[1:-1]
    return text


def stdin_bytes(what: str) -> bytes:
    if sys.stdin.isatty():
        click.echo(f"laneway: reading {what} from the terminal; end it with Ctrl-D", err=True)
    return sys.stdin.buffer.read()


def stdin_lines() -> Iterator[bytes]:
    """The lines of stdin without their ends, as they arrive."""
    for line in sys.stdin.buffer:
        yield line.rstrip(b"\r\n")
