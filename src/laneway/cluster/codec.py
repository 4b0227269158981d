"""Values as bytes, between the processes of one server: requests, answers, pushes, changes of the topology.

Pickle carries them: it knows tuples from lists, ranges and arrays. What may be built from bytes is listed below, so a
process can be given values and nothing else: no function is ever called that does not build one of these.

Nearly all bytes are bodies and properties of messages. Those columns may go apart, as one MessagePack of lists: that
costs half of what pickle takes for each message, and spares copies of them all.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from laneway.core.deliveries import Deliveries
from laneway.core.events import Cause
from laneway.core.message import Messages
from laneway.errors import LanewayError

#: Where values are defined. Of these modules it is the structs and the errors: what else they hold is no value.
_VALUE_MODULES = {
    "laneway.broker.interface",
    "laneway.broker.topology",
    "laneway.broker.values",
    "laneway.cluster.following",
    "laneway.core.catalogue",
    "laneway.core.deliveries",
    "laneway.core.events",
    "laneway.core.exchanges",
    "laneway.core.message",
    "laneway.core.outbox",
    "laneway.core.settings",
    "laneway.core.stories",
    "laneway.errors",
}
#: Values that are no structs.
_OTHER_VALUES = {
    ("laneway.core.catalogue", "QueueName"),
    ("laneway.core.digits", "Tokens"),
    ("laneway.core.events", "Cause"),
    ("laneway.core.runs", "Seqs"),
    ("laneway.journal.interface", "Extent"),
    ("laneway.journal.interface", "Held"),
    ("laneway.journal.interface", "Place"),
}
#: What the standard library and msgspec need to build values. They hold no more than other values.
BUILDERS = {
    ("array", "_array_reconstructor"),
    ("array", "array"),
    ("builtins", "bytearray"),
    ("builtins", "bytes"),
    ("builtins", "frozenset"),
    ("builtins", "range"),
    ("builtins", "set"),
    ("datetime", "datetime"),
    ("datetime", "timezone"),
    ("laneway.errors", "rebuilt"),
    ("msgspec._utils", "rebuild"),
}


class NoValue(Exception):
    """Something was to cross between processes that is no value."""


def is_value_class(found: Any) -> bool:
    if not isinstance(found, type):
        return False
    if (found.__module__, found.__qualname__) in _OTHER_VALUES:
        return True
    return found.__module__ in _VALUE_MODULES and issubclass(found, msgspec.Struct | LanewayError)


def encode(value: Any) -> bytes:
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(value)
    return file.getvalue()


def encode_apart(value: Any) -> tuple[bytes, bytes]:
    """The value, and the columns of messages in it."""
    columns: list[Any] = []
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5)
    pickler.dispatch_table = _REDUCERS | {
        Messages: partial(_apart, columns, _MESSAGE_COLUMNS),
        Deliveries: partial(_apart, columns, _DELIVERY_COLUMNS),
        _Column: _number_of,
    }
    pickler.dump(value)
    return file.getvalue(), _encode_columns(columns) if columns else b""


def decode(data: bytes | bytearray | memoryview, columns: bytes | memoryview = b"") -> Any:
    unpickler = _Unpickler(io.BytesIO(data))
    if columns:
        unpickler.columns = _decode_columns(columns)
    return unpickler.load()


class _Column(msgspec.Struct, gc=False):
    """Stands in a value for a column that goes apart."""

    number: int


def _column(number: int) -> list[bytes]:
    """The name of what puts a column into its place again (_Unpickler.find_class)."""
    raise NoValue(f"column {number} is not there")


def _number_of(column: _Column) -> tuple[Any, ...]:
    return _column, (column.number,)


def _apart(columns: list[Any], places: Sequence[int], value: Any) -> tuple[Any, ...]:
    fields = list(msgspec.structs.astuple(value))
    for place in places:
        column = fields[place]
        if type(column) is list:
            fields[place] = _Column(len(columns))
            columns.append(column)
    return type(value), tuple(fields)


_MESSAGE_COLUMNS, _DELIVERY_COLUMNS = (
    [kind.__struct_fields__.index(name) for name in ("props", "bodies")] for kind in (Messages, Deliveries)
)
_encode_columns = msgspec.msgpack.Encoder().encode
_decode_columns = msgspec.msgpack.Decoder(list[list[bytes]]).decode


def _bytes_of(view: memoryview) -> tuple[Any, ...]:
    """What was read from the journal are views of all that was read with it."""
    return bytes, (bytes(view),)


def _by_value(cause: Cause) -> tuple[Any, ...]:
    """Enums are pickled by attribute in older Pythons, and so could anything else be."""
    return Cause, (cause.value,)


_REDUCERS = copyreg.dispatch_table | {memoryview: _bytes_of, Cause: _by_value}


class _Unpickler(pickle.Unpickler):
    columns: Sequence[list[bytes]] = ()

    def find_class(self, module: str, name: str) -> Any:
        if name == "_column":
            return self.columns.__getitem__
        found = _KNOWN.get((module, name))
        if found is None:
            found = self._looked_up(module, name)
        return found

    def _looked_up(self, module: str, name: str) -> Any:
        if (module, name) not in BUILDERS and not module.startswith("laneway."):
            raise NoValue(f"{module}.{name} is no value")
        found = super().find_class(module, name)
        if (module, name) not in BUILDERS and not is_value_class(found):
            raise NoValue(f"{module}.{name} is no value")
        _KNOWN[module, name] = found
        return found


_KNOWN: dict[tuple[str, str], Any] = {}
