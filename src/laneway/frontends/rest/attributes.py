"""The values of attributes and arguments on the wire: JSON's own, and bytes as {"binary": base64}."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from laneway.errors import InvalidInput

_MOST_LEVELS = 40  # headers of AMQP have 32 at most, arguments fewer
_TOO_DEEP = "nested too deep to be shown"


class Binary(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Bytes as an attribute's value."""

    binary: bytes


Attributes = dict[str, str | int | float | bool | Binary]


def attribute_values(attributes: Attributes) -> dict[str, Any]:
    """The attributes of a message as it stores them."""
    values: dict[str, Any] = {}
    for name, value in attributes.items():
        if type(value) is Binary:
            values[name] = value.binary
        elif type(value) is int and not -(2**63) <= value < 2**64:
            raise InvalidInput(f"attribute {name!r} is an integer of more than 64 bits", field=f"attributes.{name}")
        else:
            values[name] = value
    return values


def attribute_to_wire(value: Any, levels: int = _MOST_LEVELS) -> Any:
    """Show bytes, also inside what other protocols nest, in the form that publishing takes. What is nested deeper than
    anything may be today, and was stored before there was a bound, is cut."""
    if isinstance(value, bytes):
        return Binary(value)
    if isinstance(value, dict):
        return {str(name): attribute_to_wire(held, levels - 1) for name, held in value.items()} if levels else _TOO_DEEP
    if isinstance(value, (list, tuple)):
        return [attribute_to_wire(held, levels - 1) for held in value] if levels else _TOO_DEEP
    return value


def attribute_from_wire(value: Any, levels: int = _MOST_LEVELS) -> Any:
    """The inverse of attribute_to_wire."""
    if not levels and isinstance(value, dict | list):
        raise InvalidInput(f"values are nested more than {_MOST_LEVELS} deep", field="arguments")
    if isinstance(value, dict):
        if value.keys() == {"binary"} and isinstance(value["binary"], str):
            try:
                return base64.b64decode(value["binary"], validate=True)
            except ValueError:
                raise InvalidInput("binary is base64", field="binary") from None
        return {name: attribute_from_wire(held, levels - 1) for name, held in value.items()}
    if isinstance(value, list):
        return [attribute_from_wire(held, levels - 1) for held in value]
    return value
