"""Transcripts: files that say what is sent and what must come back, recorded from a real RabbitMQ.

    # a comment
    > 1 queue.declare queue="q" durable=1           sent on channel 1 by connection A, which is logged in
    < 1 queue.declare-ok queue="q"                  must be the next frame that A gets; what is 0 or empty is left out
    B> 1 queue.delete queue="q"                     another connection, logged in when it is first named
    > 1 publish key="q" body="hello" priority=3     basic.publish, header and body at once
    > bytes "0100…"                                 these bytes, in hexadecimal
    < closed                                        the server closes the connection

After a channel.close or connection.close the player closes its side too and opens the channel or the connection anew;
that is not shown. `python -m tests.amqp.transcript HOST:PORT FILE …` records: it sends what the files say to a server
and rewrites the lines that came back. Names that servers make up are shown as amq.gen-* and amq.ctag-*; `$gen` and
`$ctag` stand for the last ones seen. Times of death are shown as *.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.amqp.wire import DEADLINE_S, HEADER, Frame, Wire, method, publish

FOLDER = Path(__file__).parent / "transcripts"
_SILENCE_S = 0.25
_MADE_UP = re.compile(r"amq\.(gen|ctag)-[\w-]+")
_TIME = re.compile(r'"time": {"!T": [0-9]+}')
_LINE = re.compile(r"([A-Z]?)([<>]) ?(.*)")


def fields_of(text: str) -> dict[str, Any]:
    decoder = json.JSONDecoder()
    found: dict[str, Any] = {}
    at = 0
    while at < len(text):
        name, _, rest = text[at:].lstrip().partition("=")
        start = len(text) - len(rest)
        value, end = decoder.raw_decode(text, start)
        found[name] = value
        at = end
        while at < len(text) and text[at] == " ":
            at += 1
    return found


class Player:
    """Plays one transcript against a server."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._wires: dict[str, Wire] = {}
        self._last: dict[str, str] = {}

    def _wire(self, name: str, *, log_in: bool = True) -> Wire:
        wire = self._wires.get(name)
        if wire is None:
            wire = self._wires[name] = Wire(self._address)
            if log_in:
                wire.log_in(channels=2)
        return wire

    def send(self, name: str, text: str) -> None:
        for key, value in self._last.items():
            text = text.replace(f"${key}", value)
        channel, _, rest = text.partition(" ")
        if channel == "connect":  # and do not log in
            self._wire(name, log_in=False).send(HEADER)
        elif channel == "bytes":
            self._wire(name).send(bytes.fromhex(json.loads(rest).replace(" ", "")))
        elif channel == "close":
            self._wire(name).close()
            del self._wires[name]
        else:
            self._wire(name).send(self._encode(int(channel), rest))

    @staticmethod
    def _encode(channel: int, text: str) -> bytes:
        name, _, rest = text.partition(" ")
        fields = fields_of(rest)
        if name != "publish":
            return method(channel, name, **fields)
        body = fields.pop("body", "").encode()
        given = {key.replace("-", "_"): value for key, value in fields.items()}
        return publish(channel, given.pop("key", ""), body, given.pop("exchange", ""), **given)

    def receive(self, name: str, within_s: float) -> str | None:
        """The next frame as a line; None if none comes within this time."""
        wire = self._wire(name)
        wire.socket.settimeout(within_s)
        try:
            got = wire.read()
        except (EOFError, ConnectionResetError):
            return "closed"
        except TimeoutError:
            return None
        self._close_too(name, wire, got)
        line = str(got)
        for made_up in _MADE_UP.finditer(line):
            self._last[made_up[1]] = made_up[0]
        return _TIME.sub('"time": "*"', _MADE_UP.sub(r"amq.\1-*", line))

    def _close_too(self, name: str, wire: Wire, got: Frame) -> None:
        if got.name == "channel.close":
            wire.send(method(got.channel, "channel.close-ok") + method(got.channel, "channel.open"))
            while wire.read().name != "channel.open-ok":
                pass
        elif got.name == "connection.close":
            wire.send(method(0, "connection.close-ok"))
            wire.socket.settimeout(DEADLINE_S)
            wire.read_until_closed()
            del self._wires[name]

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()


def replay(text: str, address: tuple[str, int]) -> list[str]:
    """The lines as they would have to be; equal to those of the text when all is as it says."""
    player = Player(address)
    lines: list[str] = []
    for line in text.splitlines():
        step = _LINE.fullmatch(line)
        if step is None:
            lines.append(line)
        elif step[2] == ">":
            lines.append(line)
            player.send(step[1] or "A", step[3])
        else:
            lines.append(f"{step[1]}< {player.receive(step[1] or 'A', 10.0)}")
            if lines[-1] != line:
                break
    player.close()
    return lines


def record(text: str, address: tuple[str, int]) -> str:
    """The same with the answers of this server."""
    player = Player(address)
    lines: list[str] = []
    asked: list[str] = []
    for line in text.splitlines():
        step = _LINE.fullmatch(line)
        if step is not None and step[2] == "<":
            continue
        lines.append(line)
        if step is None:
            continue
        player.send(step[1] or "A", step[3])
        if (step[1] or "A") not in asked:
            asked.append(step[1] or "A")
        for name in asked:
            while name in player._wires and (got := player.receive(name, _SILENCE_S)) is not None:
                lines.append(f"{'' if name == 'A' else name}< {got}")
                if got == "closed":
                    player._wires.pop(name).close()
    player.close()
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    host, _, port = sys.argv[1].rpartition(":")
    for path in map(Path, sys.argv[2:]):
        path.write_text(record(path.read_text(), (host, int(port))))
        print(path)
