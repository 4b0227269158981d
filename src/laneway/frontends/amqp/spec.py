"""The methods of AMQP 0-9-1 as a table, and the code that reads and writes any of them from it.

Used for everything but basic.publish, deliver, ack and get-ok, which incoming.py and delivering.py handle by hand. A
frame on the wire:

    u8 type · u16 channel · u32 size · payload · 0xCE        a method's payload: u16 class, u16 method, arguments
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from laneway.core.field_tables import Malformed, decode_table, encode_short_text, encode_table

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEADER_OF_0_9 = b"AMQP\x01\x01\x00\x09"  # of old clients, which speak the same
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
FRAME_OVERHEAD_BYTES = 8
FRAME_MIN_BYTES = 4096
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"

# Every method a server sends or gets. `x` is a bit (neighbouring bits share a byte), `t` a table, `o` an octet, `s` a
# short, `l` a long, `q` a long long, `c` a short string, `C` a long string (bytes: it may be anything).
_SPEC = """
10 10 connection.start      o:version_major o:version_minor t:server_properties C:mechanisms C:locales
10 11 connection.start-ok   t:client_properties c:mechanism C:response c:locale
10 20 connection.secure     C:challenge
10 21 connection.secure-ok  C:response
10 30 connection.tune       s:channel_max l:frame_max s:heartbeat
10 31 connection.tune-ok    s:channel_max l:frame_max s:heartbeat
10 40 connection.open       c:virtual_host c:reserved_1 x:reserved_2
10 41 connection.open-ok    c:reserved_1
10 50 connection.close      s:reply_code c:reply_text s:class_id s:method_id
10 51 connection.close-ok
10 60 connection.blocked    c:reason
10 61 connection.unblocked
10 70 connection.update-secret C:new_secret c:reason
10 71 connection.update-secret-ok
20 10 channel.open          c:reserved_1
20 11 channel.open-ok       C:reserved_1
20 20 channel.flow          x:active
20 21 channel.flow-ok       x:active
20 40 channel.close         s:reply_code c:reply_text s:class_id s:method_id
20 41 channel.close-ok
30 10 access.request        c:realm x:exclusive x:passive x:active x:write x:read
30 11 access.request-ok     s:ticket
40 10 exchange.declare      s:ticket c:exchange c:type x:passive x:durable x:auto_delete x:internal x:nowait t:arguments
40 11 exchange.declare-ok
40 20 exchange.delete       s:ticket c:exchange x:if_unused x:nowait
40 21 exchange.delete-ok
40 30 exchange.bind         s:ticket c:destination c:source c:routing_key x:nowait t:arguments
40 31 exchange.bind-ok
40 40 exchange.unbind       s:ticket c:destination c:source c:routing_key x:nowait t:arguments
40 51 exchange.unbind-ok
50 10 queue.declare         s:ticket c:queue x:passive x:durable x:exclusive x:auto_delete x:nowait t:arguments
50 11 queue.declare-ok      c:queue l:message_count l:consumer_count
50 20 queue.bind            s:ticket c:queue c:exchange c:routing_key x:nowait t:arguments
50 21 queue.bind-ok
50 30 queue.purge           s:ticket c:queue x:nowait
50 31 queue.purge-ok        l:message_count
50 40 queue.delete          s:ticket c:queue x:if_unused x:if_empty x:nowait
50 41 queue.delete-ok       l:message_count
50 50 queue.unbind          s:ticket c:queue c:exchange c:routing_key t:arguments
50 51 queue.unbind-ok
60 10 basic.qos             l:prefetch_size s:prefetch_count x:global
60 11 basic.qos-ok
60 20 basic.consume         s:ticket c:queue c:consumer_tag x:no_local x:no_ack x:exclusive x:nowait t:arguments
60 21 basic.consume-ok      c:consumer_tag
60 30 basic.cancel          c:consumer_tag x:nowait
60 31 basic.cancel-ok       c:consumer_tag
60 40 basic.publish         s:ticket c:exchange c:routing_key x:mandatory x:immediate
60 50 basic.return          s:reply_code c:reply_text c:exchange c:routing_key
60 60 basic.deliver         c:consumer_tag q:delivery_tag x:redelivered c:exchange c:routing_key
60 70 basic.get             s:ticket c:queue x:no_ack
60 71 basic.get-ok          q:delivery_tag x:redelivered c:exchange c:routing_key l:message_count
60 72 basic.get-empty       c:reserved_1
60 80 basic.ack             q:delivery_tag x:multiple
60 90 basic.reject          q:delivery_tag x:requeue
60 100 basic.recover-async  x:requeue
60 110 basic.recover        x:requeue
60 111 basic.recover-ok
60 120 basic.nack           q:delivery_tag x:multiple x:requeue
85 10 confirm.select        x:nowait
85 11 confirm.select-ok
90 10 tx.select
90 11 tx.select-ok
90 20 tx.commit
90 21 tx.commit-ok
90 30 tx.rollback
90 31 tx.rollback-ok
"""

_OCTET, _SHORT, _LONG, _LONGLONG = (struct.Struct(">" + layout) for layout in "BHIQ")
_INTEGERS = {"o": _OCTET, "s": _SHORT, "l": _LONG, "q": _LONGLONG}
_FRAME_HEAD = struct.Struct(">BHIHH")


class Arguments:
    """The arguments of one method, as attributes. `raw` and `table_at` let a table's types be looked up later."""

    def __init__(self, method: Method, raw: bytes) -> None:
        self.method = method
        self.raw = raw
        self.table_at = 0

    def replace(self, **changes: Any) -> None:
        vars(self).update(changes)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self.method.name} has no argument {name}")


class Method:
    """One line of the table."""

    def __init__(self, class_id: int, method_id: int, name: str, fields: list[tuple[str, str]]) -> None:
        self.class_id = class_id
        self.method_id = method_id
        self.name = name
        self.fields = fields
        self.number = class_id << 16 | method_id

    def decode(self, payload: bytes) -> Arguments:
        """From a whole method payload; raises Malformed."""
        arguments = Arguments(self, payload)
        at, bit = 4, 0
        for kind, name in self.fields:
            if kind == "x":
                if bit == 8:
                    at, bit = at + 1, 0
                if at >= len(payload):
                    raise Malformed(f"{self.name} ends before {name}")
                setattr(arguments, name, bool(payload[at] >> bit & 1))
                bit += 1
                continue
            if bit:
                at, bit = at + 1, 0
            if kind == "t":
                arguments.table_at = at
            value, at = self._decode_field(payload, at, kind, name)
            setattr(arguments, name, value)
        return arguments

    def _decode_field(self, payload: bytes, at: int, kind: str, name: str) -> tuple[Any, int]:
        if kind == "t":
            return decode_table(payload, at)
        layout = _INTEGERS.get(kind, _LONG if kind == "C" else _OCTET)
        end = at + layout.size
        if end > len(payload):
            raise Malformed(f"{self.name} ends before {name}")
        value = layout.unpack_from(payload, at)[0]
        if kind in _INTEGERS:
            return value, end
        at, end = end, end + value
        if end > len(payload):
            raise Malformed(f"{self.name} ends within {name}")
        raw = payload[at:end]
        return (raw if kind == "C" else raw.decode("utf-8", "surrogateescape")), end

    def encode(self, channel: int, *values: Any) -> bytes:
        """A whole frame."""
        payload = b"".join(self._encode_fields(values))
        head = _FRAME_HEAD.pack(METHOD, channel, len(payload) + 4, self.class_id, self.method_id)
        return head + payload + b"\xce"

    def _encode_fields(self, values: tuple[Any, ...]) -> list[bytes]:
        parts: list[bytes] = []
        bits = bit = 0
        for (kind, _), value in zip(self.fields, values, strict=True):
            if kind == "x":
                bits |= bool(value) << bit
                bit += 1
                continue
            if bit:
                parts.append(bytes((bits,)))
                bits = bit = 0
            parts.append(_WRITERS[kind](value))
        if bit:
            parts.append(bytes((bits,)))
        return parts


def _encode_long_text(value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return _LONG.pack(len(raw)) + raw


_WRITERS: dict[str, Callable[[Any], bytes]] = {
    "o": _OCTET.pack,
    "s": _SHORT.pack,
    "l": _LONG.pack,
    "q": _LONGLONG.pack,
    "c": encode_short_text,
    "C": _encode_long_text,
    "t": encode_table,
}


def _parse_spec() -> dict[int, Method]:
    methods: dict[int, Method] = {}
    for line in _SPEC.strip().splitlines():
        class_id, method_id, name, *fields = line.split()
        pairs = [(kind, field) for kind, _, field in (text.partition(":") for text in fields)]
        method = Method(int(class_id), int(method_id), name, pairs)
        methods[method.number] = method
    return methods


METHODS = _parse_spec()
BY_NAME = {method.name: method for method in METHODS.values()}


_LINE_ENDS = str.maketrans("", "", "\r\n")


def without_line_ends(name: str) -> str:
    """The name of a queue or exchange as RabbitMQ takes it where it is declared, deleted or bound."""
    return name.translate(_LINE_ENDS)


def encode(name: str, channel: int, *values: Any) -> bytes:
    """The frame of a method, by its name."""
    return BY_NAME[name].encode(channel, *values)
