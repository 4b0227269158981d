"""AMQP 0-9-1 over a plain socket, with a codec that shares nothing with Laneway's: what the two agree on, they agree on
by the protocol. Frames are shown as lines of text, so that a test can say exactly what it expects."""

from __future__ import annotations

import json
import re
import socket
import struct
from typing import Any

DEADLINE_S = 10.0
HEADER = b"AMQP\x00\x00\x09\x01"

_SPEC = """
connection 10: start 10 version-major:octet version-minor:octet server-properties:table mechanisms:longstr
   locales:longstr
 | start-ok 11 client-properties:table mechanism:shortstr response:longstr locale:shortstr
 | secure 20 challenge:longstr | secure-ok 21 response:longstr
 | tune 30 channel-max:short frame-max:long heartbeat:short
 | tune-ok 31 channel-max:short frame-max:long heartbeat:short
 | open 40 virtual-host:shortstr r1:shortstr r2:bit | open-ok 41 r1:shortstr
 | close 50 code:short text:shortstr class-id:short method-id:short | close-ok 51
 | blocked 60 reason:shortstr | unblocked 61 | update-secret 70 secret:longstr reason:shortstr | update-secret-ok 71
channel 20: open 10 r1:shortstr | open-ok 11 r1:longstr | flow 20 active:bit | flow-ok 21 active:bit
 | close 40 code:short text:shortstr class-id:short method-id:short | close-ok 41
access 30: request 10 realm:shortstr exclusive:bit passive:bit active:bit write:bit read:bit
 | request-ok 11 ticket:short
exchange 40: declare 10 r1:short exchange:shortstr type:shortstr passive:bit durable:bit auto-delete:bit internal:bit
   nowait:bit arguments:table
 | declare-ok 11 | delete 20 r1:short exchange:shortstr if-unused:bit nowait:bit | delete-ok 21
 | bind 30 r1:short destination:shortstr source:shortstr key:shortstr nowait:bit arguments:table | bind-ok 31
 | unbind 40 r1:short destination:shortstr source:shortstr key:shortstr nowait:bit arguments:table | unbind-ok 51
queue 50: declare 10 r1:short queue:shortstr passive:bit durable:bit exclusive:bit auto-delete:bit nowait:bit
   arguments:table
 | declare-ok 11 queue:shortstr messages:long consumers:long
 | bind 20 r1:short queue:shortstr exchange:shortstr key:shortstr nowait:bit arguments:table | bind-ok 21
 | purge 30 r1:short queue:shortstr nowait:bit | purge-ok 31 messages:long
 | delete 40 r1:short queue:shortstr if-unused:bit if-empty:bit nowait:bit | delete-ok 41 messages:long
 | unbind 50 r1:short queue:shortstr exchange:shortstr key:shortstr arguments:table | unbind-ok 51
basic 60: qos 10 size:long count:short global:bit | qos-ok 11
 | consume 20 r1:short queue:shortstr tag:shortstr no-local:bit no-ack:bit exclusive:bit nowait:bit arguments:table
 | consume-ok 21 tag:shortstr | cancel 30 tag:shortstr nowait:bit | cancel-ok 31 tag:shortstr
 | publish 40 r1:short exchange:shortstr key:shortstr mandatory:bit immediate:bit
 | return 50 code:short text:shortstr exchange:shortstr key:shortstr
 | deliver 60 tag:shortstr delivery:longlong redelivered:bit exchange:shortstr key:shortstr
 | get 70 r1:short queue:shortstr no-ack:bit
 | get-ok 71 delivery:longlong redelivered:bit exchange:shortstr key:shortstr messages:long | get-empty 72 r1:shortstr
 | ack 80 delivery:longlong multiple:bit | reject 90 delivery:longlong requeue:bit | recover-async 100 requeue:bit
 | recover 110 requeue:bit | recover-ok 111 | nack 120 delivery:longlong multiple:bit requeue:bit
confirm 85: select 10 nowait:bit | select-ok 11
tx 90: select 10 | select-ok 11 | commit 20 | commit-ok 21 | rollback 30 | rollback-ok 31
"""

_PROPERTIES = [
    ("content-type", "shortstr"), ("content-encoding", "shortstr"), ("headers", "table"), ("delivery-mode", "octet"),
    ("priority", "octet"), ("correlation-id", "shortstr"), ("reply-to", "shortstr"), ("expiration", "shortstr"),
    ("message-id", "shortstr"), ("timestamp", "longlong"), ("type", "shortstr"), ("user-id", "shortstr"),
    ("app-id", "shortstr"), ("cluster-id", "shortstr"),
]  # fmt: skip

_SIZES = {"octet": ">B", "short": ">H", "long": ">I", "longlong": ">Q"}
_VALUES = {"t": "?", "b": "b", "B": "B", "s": "h", "u": "H", "I": "i", "i": "I", "l": "q", "f": "f", "d": "d", "T": "Q"}


def _parse() -> dict[str, tuple[int, int, list[list[str]]]]:
    found: dict[str, tuple[int, int, list[list[str]]]] = {}
    for class_name, class_id, methods in re.findall(r"^(\w+) (\d+): ((?:.|\n )+)", _SPEC, re.MULTILINE):
        for method in methods.split("|"):
            name, number, *fields = method.split()
            found[f"{class_name}.{name}"] = (int(class_id), int(number), [f.split(":") for f in fields])
    return found


SPEC = _parse()
_NAMES = {(c, m): name for name, (c, m, _) in SPEC.items()}


# --- writing


def short_text(text: str | bytes) -> bytes:
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return bytes([len(raw)]) + raw


def long_text(text: str | bytes) -> bytes:
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return struct.pack(">I", len(raw)) + raw


def table(values: dict[str, Any]) -> bytes:
    return long_text(b"".join(short_text(name) + value_of(value) for name, value in values.items()))


def value_of(value: Any) -> bytes:
    """A dictionary with a single key like "!l" gives the type of its value."""
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)).startswith("!"):
        kind, inner = next(iter(value.items()))
        if kind == "!x":
            return b"x" + long_text(inner)
        if kind == "!V":
            return b"V"
        return kind[1:].encode() + struct.pack(">" + _VALUES[kind[1:]], inner)
    if isinstance(value, bool):
        return b"t" + bytes([value])
    if isinstance(value, int):
        return b"I" + struct.pack(">i", value) if abs(value) < 1 << 31 else b"l" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"d" + struct.pack(">d", value)
    if isinstance(value, dict):
        return b"F" + table(value)
    if isinstance(value, list):
        return b"A" + long_text(b"".join(map(value_of, value)))
    return b"S" + long_text(value)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, name: str, **given: Any) -> bytes:
    class_id, method_id, fields = SPEC[name]
    given = {key.replace("_", "-"): value for key, value in given.items()}
    unknown = set(given) - {field for field, _ in fields}
    assert not unknown, f"{name} has no {unknown}"
    out, bits, bit = struct.pack(">HH", class_id, method_id), 0, 0
    for field, kind in fields:
        value = given.get(field)
        if kind == "bit":
            bits |= bool(value) << bit
            bit += 1
            continue
        if bit:
            out, bits, bit = out + bytes([bits]), 0, 0
        out += _write(kind, value)
    return frame(1, channel, out + bytes([bits]) if bit else out)


def _write(kind: str, value: Any) -> bytes:
    if kind in _SIZES:
        return struct.pack(_SIZES[kind], value or 0)
    if kind == "table":
        return table(value or {})
    return short_text(value or "") if kind == "shortstr" else long_text(value or "")


def properties(**given: Any) -> bytes:
    given = {key.replace("_", "-"): value for key, value in given.items()}
    assert set(given) <= {name for name, _ in _PROPERTIES}, given
    flags, out = 0, b""
    for at, (name, kind) in enumerate(_PROPERTIES):
        if name in given:
            flags |= 1 << 15 - at
            out += _write(kind, given[name])
    return struct.pack(">H", flags) + out


def content(channel: int, body: bytes, *, frame_max: int = 131072, **given: Any) -> bytes:
    header = frame(2, channel, struct.pack(">HHQ", 60, 0, len(body)) + properties(**given))
    most = frame_max - 8
    return header + b"".join(frame(3, channel, body[at : at + most]) for at in range(0, len(body), most))


def publish(channel: int, key: str, body: bytes, exchange: str = "", *, mandatory: bool = False, **given: Any) -> bytes:
    return method(channel, "basic.publish", exchange=exchange, key=key, mandatory=mandatory) + content(
        channel, body, **given
    )


# --- reading


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        assert self.at + count <= len(self.data), f"only {len(self.data) - self.at} of {count} bytes in {self.data!r}"
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def text(self, size_layout: str) -> str:
        return self.take(self.number(size_layout)).decode("utf-8", "backslashreplace")

    def field(self, kind: str) -> Any:
        if kind in _SIZES:
            return self.number(_SIZES[kind])
        if kind == "table":
            return self.table()
        return self.text(">B" if kind == "shortstr" else ">I")

    def table(self) -> dict[str, Any]:
        inner = Reader(self.take(self.number(">I")))
        found: dict[str, Any] = {}
        while inner.at < len(inner.data):
            name = inner.text(">B")
            found[name] = inner.value()
        return found

    def value(self) -> Any:
        kind = self.take(1).decode()
        if kind == "S":
            return self.text(">I")
        if kind == "F":
            return self.table()
        if kind == "A":
            inner = Reader(self.take(self.number(">I")))
            values = []
            while inner.at < len(inner.data):
                values.append(inner.value())
            return values
        if kind == "x":
            return {"!x": self.text(">I")}
        if kind == "V":
            return {"!V": 0}
        number = self.number(">" + _VALUES[kind])
        return number if kind in "tId" else {"!" + kind: number}


class Frame:
    """One frame that came, and how it is shown."""

    def __init__(self, kind: int, channel: int, payload: bytes) -> None:
        self.kind, self.channel, self.payload = kind, channel, payload
        self.name = ""
        self.fields: dict[str, Any] = {}
        if kind == 1:
            self._read_method()
        elif kind == 2:
            self._read_header()

    def _read_method(self) -> None:
        reader = Reader(self.payload)
        self.name = _NAMES[reader.number(">H"), reader.number(">H")]
        bit = 8
        for field, kind in SPEC[self.name][2]:
            if kind == "bit":
                if bit == 8:
                    bits, bit = reader.number(">B"), 0
                self.fields[field] = bits >> bit & 1
                bit += 1
            else:
                bit = 8
                self.fields[field] = reader.field(kind)
        assert reader.at == len(self.payload), f"{self.name} is followed by {self.payload[reader.at :]!r}"

    def _read_header(self) -> None:
        reader = Reader(self.payload)
        assert (reader.number(">H"), reader.number(">H")) == (60, 0)
        self.name = "header"
        self.fields["size"] = reader.number(">Q")
        flags = reader.number(">H")
        for at, (name, kind) in enumerate(_PROPERTIES):
            if flags & 1 << 15 - at:
                self.fields[name] = reader.field(kind)
        assert reader.at == len(self.payload)

    def __str__(self) -> str:
        if self.kind == 3:
            return f"{self.channel} body {json.dumps(self.payload.decode('utf-8', 'backslashreplace'))}"
        if self.kind == 8:
            return f"{self.channel} heartbeat"
        shown = [
            f"{name}={json.dumps(value, sort_keys=True)}"
            for name, value in self.fields.items()
            if value not in (0, "", {})
        ]
        return " ".join([str(self.channel), self.name, *shown])


class Wire:
    """A connection to a server, spoken frame by frame."""

    def __init__(self, address: tuple[str, int], wrapped: socket.socket | None = None) -> None:
        self.socket = wrapped or socket.create_connection(address, timeout=DEADLINE_S)
        self.socket.settimeout(DEADLINE_S)
        self._received = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_bytes(self, count: int) -> bytes:
        while len(self._received) < count:
            more = self.socket.recv(1 << 16)
            if not more:
                raise EOFError(self._received)
            self._received += more
        data, self._received = self._received[:count], self._received[count:]
        return data

    def read(self) -> Frame:
        kind, channel, size = struct.unpack(">BHI", self.read_bytes(7))
        payload = self.read_bytes(size + 1)
        assert payload[-1] == 0xCE
        return Frame(kind, channel, payload[:-1])

    def expect(self, name: str) -> Frame:
        got = self.read()
        while got.kind == 8:
            got = self.read()
        assert got.name == name, str(got)
        return got

    def ask(self, channel: int, name: str, **given: Any) -> Frame:
        """Send a method and read one frame."""
        self.send(method(channel, name, **given))
        return self.read()

    def read_until_closed(self) -> bytes:
        try:
            while more := self.socket.recv(1 << 16):
                self._received += more
        except ConnectionResetError:
            pass
        received, self._received = self._received, b""
        return received

    def log_in(
        self,
        user: str = "guest",
        password: str = "guest",
        vhost: str = "/",
        *,
        heartbeat: int = 0,
        frame_max: int = 131072,
        channel_max: int = 2047,
        channels: int = 1,
        **client: Any,
    ) -> Wire:
        self.send(HEADER)
        self.expect("connection.start")
        self.send(
            method(
                0,
                "connection.start-ok",
                client_properties={"capabilities": client or CAPABILITIES},
                mechanism="PLAIN",
                response=f"\0{user}\0{password}",
                locale="en_US",
            )
        )
        self.expect("connection.tune")
        self.send(
            method(0, "connection.tune-ok", channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)
            + method(0, "connection.open", virtual_host=vhost)
        )
        self.expect("connection.open-ok")
        for channel in range(1, channels + 1):
            self.send(method(channel, "channel.open"))
            self.expect("channel.open-ok")
        return self

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


CAPABILITIES = {
    "publisher_confirms": True,
    "consumer_cancel_notify": True,
    "basic.nack": True,
    "authentication_failure_close": True,
    "connection.blocked": True,
}
