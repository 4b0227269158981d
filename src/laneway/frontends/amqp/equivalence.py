"""Whether what is declared again agrees with what is there, and how RabbitMQ says that it does not."""

from __future__ import annotations

from typing import Any

from laneway.broker.arguments import is_same
from laneway.core.field_tables import table_types
from laneway.frontends.amqp.errors import precondition_failed
from laneway.frontends.amqp.spec import Arguments


def check_field(where: str, name: str, received: Any, current: Any) -> None:
    if received != current:
        raise precondition_failed(
            f"inequivalent arg '{name}' for {where}: received '{_shown(received)}' but current is '{_shown(current)}'"
        )


def check_argument(where: str, name: str, a: Arguments, current: dict[str, Any]) -> None:
    is_given, is_kept = name in a.arguments, name in current
    received, kept = a.arguments.get(name), current.get(name)
    if is_given and is_kept:
        if is_same(received, kept):
            return
        shown = "none" if received is None else f"'{_shown(received)}'"
        shown = f"received {shown} but current is '{_shown(kept)}'"
    elif is_given:
        kind = table_types(a.raw, a.table_at)[name]
        shown = f"received the value '{_shown(received)}' of type '{kind}' but current is none"
    elif is_kept:
        shown = f"received none but current is the value '{_shown(kept)}' of type '{_type_of(kept)}'"
    else:
        return
    raise precondition_failed(f"inequivalent arg '{name}' for {where}: {shown}")


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type_of(value: Any) -> str:
    """Of a kept argument, whose type on the wire is not kept: that which most clients write it as."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "signedint" if -(1 << 31) <= value < 1 << 31 else "long"
    return {str: "longstr", float: "double", list: "array", dict: "table"}.get(type(value), "void")
