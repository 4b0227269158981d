"""HTML by calling functions: text is escaped unless it was made here, so that no name of a queue becomes markup."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

VOID = {"meta", "link", "br", "hr", "rect", "line", "circle", "polyline", "path"}

#: Characters that turn or hide the text around them: they are shown as their codes.
_INVISIBLE = {*range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF}


class Html(str):
    """Text that is markup already."""


Child = str | Html | Iterable["Child"] | None


def tag(name: str, /, *children: Child, **attributes: Any) -> Html:
    """An element. `class_` is class, `aria_label` is aria-label; an attribute that is None or False is left out."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(printable(str(value)))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    inner = join(*children)
    if name in VOID and not inner:
        return Html(f"<{name}{written}>" if name in ("meta", "link", "br", "hr") else f"<{name}{written}/>")
    return Html(f"<{name}{written}>{inner}</{name}>")


def join(*children: Child) -> Html:
    """One after the other, escaped where they are text."""
    parts = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            parts.append(str(child))
        elif isinstance(child, str):
            parts.append(html.escape(printable(child)))
        else:
            parts.append(str(join(*child)))
    return Html("".join(parts))


def printable(text: str) -> str:
    """The text with everything invisible shown as its code: control characters, halves of pairs, marks that turn the
    direction of writing. What is left can be written as UTF-8 and read as it stands."""
    return "".join(
        c if c in "\n\t" or (c.isprintable() and ord(c) not in _INVISIBLE) or c == "\u00a0" else _code(c) for c in text
    )


def _code(c: str) -> str:
    return f"\\x{ord(c):02x}" if ord(c) < 0x100 else f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}"


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


# --- figures, as people read them


def count(value: float | None) -> str:
    """1,234 · 12.3 k · 4.56 M: short, with three digits that count."""
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) < 10_000:
        return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"
    for unit, size in (("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15)):
        if abs(value) < 999.5 * size or unit == "P":
            break
    scaled = value / size
    return f"{scaled:.3g} {unit}" if abs(scaled) < 999.5 else f"{scaled:,.0f} {unit}"


def duration(seconds: float | None) -> str:
    """12 ms · 3.2 s · 5 min 3 s · 2 h 10 min · 7 d 3 h"""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 0:
        return "−" + duration(-seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    for (unit, size), (lesser, lesser_size) in (
        (("d", 86_400), ("h", 3_600)),
        (("h", 3_600), ("min", 60)),
        (("min", 60), ("s", 1)),
    ):
        if whole >= size:
            rest = whole % size // lesser_size
            big = f"{whole // size:,} {unit}"
            return f"{big} {rest} {lesser}" if rest and whole < 100 * size else big
    return f"{whole} s"


def percent(share: float | None) -> str:
    """Never 100 % unless it is: what is missing is the point."""
    if share is None or not math.isfinite(share):
        return "–"
    for digits in (1, 2, 3, 4):
        text = f"{share * 100:.{digits}f}"
        if float(text) not in (0.0, 100.0) or share in (0.0, 1.0):
            break
    trimmed = text.rstrip("0").rstrip(".") if "." in text else text
    if share not in (0.0, 1.0) and trimmed in ("0", "100"):
        return "> 99.9999 %" if share > 0.5 else "< 0.0001 %"
    return f"{trimmed} %"


def moment(time: datetime | None, *, seconds: bool = False) -> str:
    if time is None:
        return "–"
    return f"{utc(time):%Y-%m-%d %H:%M:%S}" if seconds else f"{utc(time):%Y-%m-%d %H:%M}"


def utc(time: datetime) -> datetime:
    """Spark's times come without a zone and mean UTC."""
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
