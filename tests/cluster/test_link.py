"""A link as bytes: what one end writes and the other reads, in whatever pieces, and what is cut."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Any, cast

from laneway.cluster import link as link_module
from laneway.cluster.codec import encode_apart
from laneway.cluster.greeting import Role
from laneway.cluster.link import MAX_FRAME_BYTES, TURN_BYTES, UNSENT_BYTES, Link, LinkOwner, Parcel
from tests.cluster.test_remote import until

SECRET = b"a secret of all processes"


class Recorder(LinkOwner):
    def __init__(self, role: Role, secret: bytes = SECRET, beat_s: float = 0) -> None:
        self.role, self.secret, self.beat_s = role, secret, beat_s
        self.came: list[Parcel] = []
        self.made = self.lost = 0
        self.full: list[bool] = []
        self.refused = ""

    def link_made(self, link: Link) -> None:
        self.made += 1

    def link_refused(self, link: Link, why: str) -> None:
        self.refused = why

    def parcel_came(self, link: Link, parcel: Parcel) -> None:
        self.came.append(parcel)

    def link_lost(self, link: Link) -> None:
        self.lost += 1

    def link_full(self, link: Link, is_full: bool) -> None:
        self.full.append(is_full)


class Wire(asyncio.Transport):
    """What a link has written is kept here."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_aborted = self.is_paused = False

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.written += b"".join(list_of_data)

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == UNSENT_BYTES

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


class End:
    def __init__(self, role: Role, **others: Any) -> None:
        self.owner, self.wire = Recorder(role, **others), Wire()
        self.link = Link(self.owner)
        self.link.connection_made(self.wire)

    def hear(self, data: bytes | bytearray, piece: int = 1 << 20) -> None:
        """As a loop would give it these bytes, so many at a time."""
        while data and not self.wire.is_aborted:
            space = self.link.get_buffer(-1)
            assert space, "a loop takes an empty buffer for the end"
            count = min(len(space), len(data), piece)
            space[:count] = data[:count]
            data = data[count:]
            self.link.buffer_updated(count)

    def take_written(self) -> bytes:
        written = bytes(self.wire.written)
        self.wire.written.clear()
        return written


def pair(**others: Any) -> tuple[End, End]:
    """An edge and a leader that have greeted one another."""
    edge, leader = End("edge", **others), End("leader", **others)
    for one, other in ((edge, leader), (leader, edge), (edge, leader)) * 2:
        other.hear(one.take_written())
    assert edge.owner.made == leader.owner.made == 1
    return edge, leader


def on_a_loop(test: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            found = test()
            if asyncio.iscoroutine(found):
                await found

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


def framed(*parcels: Parcel) -> bytes:
    encoded, columns = encode_apart(list(parcels))
    frame = len(encoded).to_bytes(4, "big") + encoded + columns
    return len(frame).to_bytes(4, "big") + frame


@on_a_loop
def test_frames_are_read_in_whatever_pieces_they_come() -> None:
    stream = framed(("a", 1), ("b", bytes(500))) + bytes(4) + framed(("c",)) + framed(("d", b"x" * 300_000))
    parcels = [("a", 1), ("b", bytes(500)), ("c",), ("d", b"x" * 300_000)]
    for piece in (1, 2, 3, 5, 7, 64, 1000, 65536):
        _, leader = pair()
        leader.hear(stream, piece)
        assert leader.owner.came == parcels, piece


@on_a_loop
def test_a_stream_that_is_cut_anywhere_gives_what_came_whole_and_goes_on() -> None:
    stream = framed(("a", b"1" * 20)) + framed(("b", 2), ("c", 3))
    first = len(framed(("a", b"1" * 20)))
    for cut in range(len(stream) + 1):
        _, leader = pair()
        leader.hear(stream[:cut])
        came = 0 if cut < first else 1 if cut < len(stream) else 3
        assert len(leader.owner.came) == came, cut
        leader.hear(stream[cut:])
        assert [one[0] for one in leader.owner.came] == ["a", "b", "c"]
        leader.link.connection_lost(None)
        assert leader.owner.lost == 1


@on_a_loop
def test_a_greeting_may_come_in_crumbs_and_with_frames_right_behind_it() -> None:
    for piece in (1, 2, 9, 41, 1000):
        edge, leader = End("edge"), End("leader")
        leader.hear(edge.take_written(), piece)
        edge.hear(leader.take_written(), piece)
        leader.hear(edge.take_written(), piece)
        edge.hear(leader.take_written() + framed(("a",)), piece)
        assert edge.owner.came == [("a",)] and leader.owner.made == 1


@on_a_loop
def test_nothing_is_decoded_before_the_other_end_is_known() -> None:
    for data in (framed(("a",)), b"\x80\x05" + bytes(80), b"GET / HTTP/1.1\r\n\r\n" + bytes(80)):
        leader = End("leader")
        leader.hear(data)
        assert leader.wire.is_aborted and not leader.owner.came and "no process of Laneway" in leader.owner.refused
    leader = End("leader")
    assert len(leader.link.get_buffer(-1)) < 100, "a stranger is given room for a greeting and no more"


@on_a_loop
def test_whoever_does_not_know_the_secret_is_refused() -> None:
    edge, leader = End("edge", secret=b"something else entirely"), End("leader")
    leader.hear(edge.take_written())
    edge.hear(leader.take_written())
    leader.hear(edge.take_written() + framed(("a",)))
    assert leader.wire.is_aborted and leader.owner.refused == "it does not know the secret of this server"
    assert not leader.owner.came and not leader.owner.made and not edge.owner.made


@on_a_loop
def test_a_frame_is_refused_by_its_length_before_any_of_it_is_kept() -> None:
    _, leader = pair()
    leader.hear((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
    assert leader.wire.is_aborted and len(leader.link._buffer) < 1 << 20


@on_a_loop
def test_nonsense_is_cut() -> None:
    for data in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x03abc", framed(("a",))[:-1] + b"x"):
        _, leader = pair()
        leader.hear(data)
        assert leader.wire.is_aborted and not leader.owner.came


@on_a_loop
def test_whatever_comes_is_taken_or_cut() -> None:
    logging.getLogger("laneway.cluster").disabled = True  # a line for each
    chance = random.Random(17)
    right = framed(("ask", 1, [b"x" * 50, (1, 2), {"a": 1}])) * 3
    for _ in range(3_000):
        wrong = bytearray(right)
        for _ in range(chance.choice((1, 1, 2, 10))):
            wrong[chance.randrange(len(wrong))] = chance.randrange(256)
        _, leader = pair_once()
        leader.hear(wrong, chance.choice((7, 1 << 20)))
        assert leader.wire.is_aborted or len(leader.link._buffer) <= MAX_FRAME_BYTES + 4
        leader.link.connection_lost(None)
    logging.getLogger("laneway.cluster").disabled = False


@on_a_loop
async def test_a_large_frame_is_read_without_looking_at_it_again_and_again() -> None:
    _, leader = pair()
    frame = framed(("a", b"x" * 8_000_000))
    leader.hear(frame[:4])
    looked: list[int] = []
    read_frames = leader.link._read_frames
    leader.link._read_frames = lambda: looked.append(1) or read_frames()  # type: ignore[method-assign,func-returns-value]
    leader.hear(frame[4:], 1000)
    assert leader.owner.came[0][1] == b"x" * 8_000_000 and len(looked) == 1
    leader.hear(framed(("b",)))
    assert len(leader.link._buffer) < 1 << 20, "the room it took is free again"


@on_a_loop
async def test_others_have_their_turn_while_much_is_read() -> None:
    _, leader = pair()
    stream = framed(("a", bytes(TURN_BYTES // 4))) * 5
    leader.hear(stream)
    assert leader.wire.is_paused
    await asyncio.sleep(0)
    assert not leader.wire.is_paused


@on_a_loop
async def test_what_is_posted_in_a_turn_leaves_together_and_in_bounded_frames() -> None:
    edge, leader = pair()
    for i in range(10):
        edge.link.post(("a", i))
    assert not edge.wire.written
    await asyncio.sleep(0)
    assert edge.wire.written.startswith(framed(*[("a", i) for i in range(10)]))
    for i in range(10):
        edge.link.post(("b", i), link_module.FRAME_BYTES // 2)
    await asyncio.sleep(0)
    sizes = []
    leader.link._take = lambda frame: sizes.append(len(frame)) or True  # type: ignore[method-assign,func-returns-value]
    leader.hear(edge.take_written())
    assert len(sizes) == 6


@on_a_loop
async def test_a_link_over_which_nothing_leaves_is_given_up() -> None:
    edge, _ = pair()
    edge.wire.get_write_buffer_size = lambda: link_module.MAX_UNSENT_BYTES + 1  # type: ignore[method-assign]
    edge.link.post(("a",))
    await asyncio.sleep(0)
    assert edge.wire.is_aborted


@on_a_loop
async def test_what_cannot_be_sent_cuts_the_link_instead_of_being_left_out() -> None:
    edge, _ = pair()
    edge.link.post(("a", lambda: None))
    await asyncio.sleep(0)
    assert edge.wire.is_aborted


@on_a_loop
async def test_an_end_that_says_nothing_is_given_up_after_some_beats() -> None:
    edge, leader = pair(beat_s=1000)
    edge.take_written()
    for _ in range(link_module.SILENT_BEATS - 2):
        edge.link._beat()
    leader.hear(edge.take_written())
    leader.link._beat()
    edge.hear(leader.take_written())  # a beat is enough
    for _ in range(link_module.SILENT_BEATS):
        assert not edge.wire.is_aborted
        edge.link._beat()
    edge.link._beat()
    assert edge.wire.is_aborted
    edge.link.connection_lost(None)
    leader.link.connection_lost(None)


@on_a_loop
async def test_who_does_not_greet_in_time_is_refused() -> None:
    before, link_module.GREETING_S = link_module.GREETING_S, 0.01
    try:
        leader = End("leader")
        leader.hear(b"laneway")
        await until(lambda: leader.wire.is_aborted)
        assert "did not greet" in leader.owner.refused
    finally:
        link_module.GREETING_S = before


def pair_once() -> tuple[None, End]:
    """A leader that was greeted, cheaply."""
    leader = End("leader")
    link = cast(Any, leader.link)
    leader.take_written()
    link._go_on_greeting((b"", 0))
    return None, leader
