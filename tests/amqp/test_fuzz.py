"""Whatever a client sends, the server goes on serving others, and ends a connection in its own words."""

from __future__ import annotations

import random
import struct

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.amqp.serving import Serving
from tests.amqp.wire import HEADER, SPEC, Wire, content, frame, method

_FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

_QUEUES = ("fuzz", "", "amq.x", "ä", "\0", "\udcff", "x" * 255)
#: Nothing that others of this worker's server would notice.
_NAMES = [name for name in SPEC if not name.startswith("connection.")]


def say_and_leave(serving: Serving, data: bytes, *, logged_in: bool = True) -> None:
    with serving.log_in() if logged_in else serving.connect() as wire:
        try:
            wire.send(data)
            wire.socket.shutdown(1)
            received = wire.read_until_closed()
        except OSError:
            received = b""  # cut off while sending
        while received and received != HEADER:
            kind, _, size = struct.unpack(">BHI", received[:7])
            assert kind in (1, 2, 3, 8) and received[7 + size] == 0xCE, received
            close = received[7:11] == b"\x00\x0a\x00\x32"
            if close:
                assert struct.unpack(">H", received[11:13])[0] != 541, received
            received = received[8 + size :]


def still_serves(serving: Serving) -> None:
    with serving.log_in() as wire:
        assert wire.ask(1, "queue.declare", queue="alive").name == "queue.declare-ok"


@_FUZZ
@given(st.binary(max_size=300))
def test_noise_instead_of_a_header(serving: Serving, data: bytes) -> None:
    say_and_leave(serving, data, logged_in=False)
    say_and_leave(serving, HEADER + data, logged_in=False)


@_FUZZ
@given(st.binary(max_size=300))
def test_noise_after_the_login(serving: Serving, data: bytes) -> None:
    say_and_leave(serving, data)


@_FUZZ
@given(
    st.lists(
        st.tuples(st.sampled_from([1, 1, 1, 2, 3, 8, 0, 9]), st.integers(0, 2), st.binary(max_size=60)), max_size=20
    )
)
def test_frames_with_noise_in_them(serving: Serving, frames: list[tuple[int, int, bytes]]) -> None:
    say_and_leave(serving, b"".join(frame(*one) for one in frames))


@_FUZZ
@given(st.integers(0, 1 << 32))
def test_methods_with_odd_arguments(serving: Serving, seed: int) -> None:
    chance = random.Random(seed)
    said = b"".join(_odd_method(chance) for _ in range(30))
    say_and_leave(serving, said)
    still_serves(serving)


def _odd_method(chance: random.Random) -> bytes:
    name = chance.choice(_NAMES)
    given = {field: _odd_value(kind, chance) for field, kind in SPEC[name][2] if chance.random() < 0.7}
    said = method(chance.choice((1, 1, 1, 2)), name, **given)
    if name == "basic.publish" or chance.random() < 0.05:
        said += content(1, chance.randbytes(chance.randrange(50)), headers={"x": _odd_value("table", chance)})
    if chance.random() < 0.1:  # a byte goes wrong
        at = chance.randrange(7, len(said))
        said = said[:at] + bytes([chance.randrange(256)]) + said[at + 1 :]
    return said


def _odd_value(kind: str, chance: random.Random) -> object:
    if kind == "bit":
        return chance.random() < 0.5
    if kind == "table":
        name = chance.choice(("x-max-length", "x-match", "x-priority", "x-message-ttl", "alternate-exchange", "ö"))
        return {name: chance.choice((1, -1, "any", 1.5, True, {"!V": 0}, {"!x": "b"}, [1, {"a": 2}], {"b": []}))}
    if kind in ("shortstr", "longstr"):
        return chance.choice(_QUEUES)
    return chance.choice((0, 1, 5, 65535) if kind == "short" else (0, 1, 200))


def test_after_all_that_the_server_serves(serving: Serving) -> None:
    still_serves(serving)


def test_a_message_in_crumbs_is_a_message(serving: Serving, wire: Wire, queue: str) -> None:
    data = method(1, "basic.publish", key=queue) + content(1, b"in crumbs", headers={"a": 1})
    for byte in data + method(1, "basic.get", queue=queue):
        wire.send(bytes([byte]))
    wire.expect("basic.get-ok")
    wire.expect("header")
    assert wire.read().payload == b"in crumbs"
