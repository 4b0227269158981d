"""The stored form of events: sixty-four bytes a message, and every event comes back as it was."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.core import rows
from laneway.core.events import (
    Acked,
    Arrived,
    Births,
    Bound,
    Cause,
    ClockSet,
    Copied,
    DeadLettered,
    DocumentPut,
    DocumentRemoved,
    Event,
    ExchangeDeleted,
    ExchangePut,
    Extended,
    KeyRemembered,
    Kind,
    Leased,
    Moved,
    Opened,
    Published,
    QueueDeleted,
    QueueDeparted,
    QueuePurged,
    QueuePut,
    QueueTold,
    Received,
    Released,
    Relocated,
    Removed,
    Reserved,
    Resumed,
    Told,
    Unbound,
)
from laneway.core.message import (
    RECORD_PREFIX_BYTES,
    Properties,
    encode_props,
    encode_record,
    located,
    places,
    record_pieces,
)
from tests.core.runner import row_births

u26, u32, u48, u64 = (
    st.integers(1, 2**26 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**48 - 1),
    st.integers(0, 2**64 - 1),
)
words = st.text(st.characters(codec="utf-8"), max_size=20)
seqs = st.lists(u64, min_size=1, max_size=6)
causes = st.sampled_from(Cause)
blobs = st.binary(max_size=30)


@st.composite
def published(draw: st.DrawFn) -> Published:
    count = draw(st.integers(1, 5))
    first, at_ms = draw(st.integers(1, 2**40)), draw(st.integers(0, 2**48))
    groups: dict[int, str] = {}
    dedups: dict[int, str] = {}
    tenants: dict[int, str] = {}
    blocks, bodies = [], []
    for i in range(count):
        group, dedup_id, tenant = draw(words), draw(words), draw(words)
        if group:
            groups[i] = group
        if dedup_id and draw(st.booleans()):  # dedup may be switched off in the queue
            dedups[i] = dedup_id
        if tenant and draw(st.booleans()):  # the queue may not be fair
            tenants[i] = tenant
        blocks.append(encode_props(Properties(group=group, dedup_id=dedup_id, tenant=tenant)))
        bodies.append(draw(blobs))
    numbers = st.lists(u64, min_size=count, max_size=count)
    priorities = draw(st.lists(st.integers(0, 255), min_size=count, max_size=count))
    sizes = [RECORD_PREFIX_BYTES + len(block) + len(body) for block, body in zip(blocks, bodies, strict=True)]
    visible, expires = draw(numbers), draw(numbers)
    event = Published(
        draw(u32), at_ms, first, priorities, visible, expires, sizes, blocks, bodies, groups, dedups, tenants=tenants
    )
    event.named_times = draw(st.frozensets(st.sampled_from(range(count)))) if any(visible) else frozenset()
    return event


@st.composite
def relocated(draw: st.DrawFn) -> Relocated:
    moved = draw(seqs)
    records = [draw(blobs) for _ in moved]
    return Relocated(draw(u64), moved, [len(r) for r in records], records)


@st.composite
def pairs(draw: st.DrawFn, kind: type[Acked] | type[Released] | type[Leased]) -> Event:
    given_seqs = draw(seqs)
    other = draw(st.lists(u32, min_size=len(given_seqs), max_size=len(given_seqs)))
    if kind is Leased:
        return Leased(draw(u32), draw(u64), given_seqs, other, draw(st.integers(1, 2**63)), draw(u48), draw(words))
    if kind is Acked:
        return Acked(draw(u32), draw(u64), given_seqs, other)
    return Released(draw(u32), draw(u64), given_seqs, other, draw(causes))


@st.composite
def moved(draw: st.DrawFn, kind: type[Moved] | type[Copied]) -> Event:
    given_seqs = draw(seqs)
    way = draw(st.none() | words), draw(st.none() | words)  # through an exchange, with a routing key
    priorities = draw(st.just(()) | st.lists(st.integers(0, 255), min_size=len(given_seqs), max_size=len(given_seqs)))
    tenants = draw(st.just(()) | st.lists(words, min_size=len(given_seqs), max_size=len(given_seqs)).map(tuple))
    first = draw(st.integers(1, 2**63))
    rest = draw(u32), first, draw(words), *way, priorities
    event = kind(draw(u32), draw(u64), given_seqs, draw(causes), *rest, tenants=tenants)
    if draw(st.booleans()):  # into an outbox
        event.tenants, event.bound_for = (), draw(st.integers(1, 2**63))
    return event


@st.composite
def arrived(draw: st.DrawFn) -> Arrived:
    group, tenant, body = draw(words), draw(words), draw(blobs)
    props = encode_props(Properties(group=group, tenant=tenant))
    size = RECORD_PREFIX_BYTES + len(props) + len(body)
    about = draw(u32), draw(u64), draw(u64), draw(causes), draw(u32), draw(u26), draw(u48), draw(u48)
    tenant = tenant if draw(st.booleans()) else ""  # the queue may not be fair
    return Arrived(*about, draw(st.integers(0, 255)), size, props, body, group, tenant)


EVENTS: dict[Kind, st.SearchStrategy[Event]] = {
    Kind.OPENED: st.builds(Opened, u64, u64, u64),
    Kind.QUEUE_PUT: st.builds(QueuePut, u32, u64, blobs),
    Kind.QUEUE_DELETED: st.builds(QueueDeleted, u32, u64, blobs),
    Kind.QUEUE_DEPARTED: st.builds(QueueDeparted, u32, u64, u64, blobs),
    Kind.QUEUE_TOLD: st.builds(QueueTold, u32, u64, blobs),
    Kind.QUEUE_PURGED: st.builds(QueuePurged, u32, u64, u64, st.booleans()),
    Kind.PUBLISHED: published(),
    Kind.LEASED: pairs(Leased),
    Kind.ACKED: pairs(Acked),
    Kind.RELEASED: pairs(Released),
    Kind.EXTENDED: st.builds(Extended, u32, u64, seqs, u48),
    Kind.RESERVED: st.builds(Reserved, u32, u64, seqs, st.integers(1, 2**63), u48),
    Kind.DEAD_LETTERED: st.builds(DeadLettered, u32, u64, seqs, causes, words),
    Kind.MOVED: moved(Moved),
    Kind.COPIED: moved(Copied),
    Kind.REMOVED: st.builds(Removed, u32, u64, seqs, causes, words),
    Kind.ARRIVED: arrived(),
    Kind.TOLD: st.builds(Told, u32, u64, u64, blobs),
    Kind.RESUMED: st.builds(Resumed, u32, u64, u64, st.integers(0, 255), u32, u64, u64, u64, blobs),
    Kind.RECEIVED: st.builds(Received, u64, u32, u64),
    Kind.RELOCATED: relocated(),
    Kind.KEY_REMEMBERED: st.builds(KeyRemembered, u32, u64, u64, blobs, u64),
    Kind.DOCUMENT_PUT: st.builds(DocumentPut, u64, words, words, blobs),
    Kind.DOCUMENT_REMOVED: st.builds(DocumentRemoved, u64, words, words),
    Kind.EXCHANGE_PUT: st.builds(ExchangePut, u64, blobs),
    Kind.EXCHANGE_DELETED: st.builds(ExchangeDeleted, u64, blobs),
    Kind.BOUND: st.builds(Bound, u32, u64, blobs),
    Kind.UNBOUND: st.builds(Unbound, u32, u64, blobs),
    Kind.CLOCK_SET: st.builds(ClockSet, u64, u64, u64, words),
}


@st.composite
def with_births(draw: st.DrawFn, events: st.SearchStrategy[Event]) -> Event:
    event = draw(events)
    if hasattr(event, "births") and draw(st.booleans()):
        count = len(event.seqs)  # type: ignore[union-attr]
        times = draw(st.lists(u48, min_size=count, max_size=count))
        places = st.integers(0, count - 1)
        event.births = Births(times, draw(st.dictionaries(places, u48)), draw(st.dictionaries(places, u26)))
    return event


EVENTS = {kind: with_births(events) for kind, events in EVENTS.items()}


def store(events: Sequence[Event], start: int = 40) -> tuple[bytes, bytes]:
    """All rows and all blobs of a commit; blobs begin at an offset, as a commit has a header."""
    stored, page = b"", bytes(start)
    for event in events:
        found, parts = rows.encode(event, len(page))
        stored += found
        page += b"".join(parts)
    return stored, page


def without_records(event: Event, location: int) -> Event:
    """As it is read back: records are not, their place is known instead."""
    if isinstance(event, Published):
        return msgspec.structs.replace(event, props=(), bodies=(), location=location)
    if isinstance(event, Arrived):
        return msgspec.structs.replace(event, props=b"", body=b"", location=location)
    if isinstance(event, Relocated):
        return msgspec.structs.replace(event, records=(), location=location, births=None)
    if isinstance(event, Moved | Copied) and event.exchange is None and not event.bound_for:
        event = msgspec.structs.replace(event, routing_key=None)  # there is none without an exchange
    return msgspec.structs.replace(event, births=None) if hasattr(event, "births") else event


def test_every_kind_of_event_is_tried() -> None:
    assert set(EVENTS) == set(Kind)


@pytest.mark.parametrize("kind", list(Kind))
def test_each_event_comes_back_as_it_was(kind: Kind) -> None:
    @given(EVENTS[kind])
    def check(event: Event) -> None:
        stored, page = store([event])
        assert len(stored) % rows.ROW_BYTES == 0
        assert all(row[0] == kind for row in rows.ROW.iter_unpack(stored))
        (back,) = rows.decode(stored, lambda at, size: page[at : at + size], lambda at: 10**12 + at)
        assert back == without_records(event, 10**12 + 40)

    check()


@given(st.lists(st.one_of(*EVENTS.values()), max_size=8))
def test_a_commit_comes_back_event_by_event(events: list[Event]) -> None:
    stored, page = store(events)
    locations: list[int] = []
    back = list(rows.decode(stored, lambda at, size: page[at : at + size], lambda at: locations.append(at) or at))
    assert [e.kind for e in back] == [e.kind for e in events]
    starts = iter(locations)
    assert back == [
        without_records(e, next(starts) if isinstance(e, Published | Relocated | Arrived) else 0) for e in events
    ]


def test_a_row_has_the_documented_fields_at_the_documented_places() -> None:
    props = encode_props(Properties(group="g", dedup_id="d"))
    record = encode_record(9, 1000, props, b"body")
    sizes, times = [len(record)] * 2, ([1500, 0], [0, 2500])
    event = Published(3, 1000, 9, [7, 8], *times, sizes, [props] * 2, [b"body"] * 2, {0: "g"}, {1: "d"})
    stored, pieces = rows.encode(event, 100)
    assert b"".join(pieces) == record + encode_record(10, 1000, props, b"body")
    first, second = stored[:64], stored[64:]
    assert first[:4] == bytes([10, 0, 7, rows.HAS_GROUP])
    assert second[:4] == bytes([10, 0, 8, rows.CONTINUES | rows.HAS_DEDUP])
    at = {"queue": (4, 4), "seq": (8, 8), "at_ms": (16, 8), "due_ms": (24, 8), "expires": (40, 8), "offset": (56, 4)}
    read = {name: int.from_bytes(second[i : i + n], "little") for name, (i, n) in at.items()}
    assert read == {"queue": 3, "seq": 10, "at_ms": 1000, "due_ms": 0, "expires": 2500, "offset": 100 + len(record)}
    assert int.from_bytes(second[60:64], "little") == len(record)


TELLING = [k for k in Kind if Kind.LEASED <= k <= Kind.REMOVED or k in (Kind.COPIED, Kind.RELOCATED)]


@pytest.mark.parametrize("kind", TELLING)
def test_a_row_about_a_message_tells_its_id(kind: Kind) -> None:
    @given(EVENTS[kind])
    def check(event: Event) -> None:
        stored, _ = store([event])
        seqs: Sequence[int] = event.seqs  # type: ignore[union-attr]
        told: Births | None = event.births  # type: ignore[union-attr]
        found = [(seq, birth) for seq, _, birth in row_births(stored)]
        if told is not None:
            numbers = [told.numbers.get(i, seq) for i, seq in enumerate(seqs)]
            tags = [told.tags.get(i, 0) for i in range(len(seqs))]
            assert found == list(zip(seqs, zip(told.enqueued_ms, tags, numbers, strict=True), strict=True))
        else:
            assert all(at_ms == tag == 0 for _, (at_ms, tag, _) in found)  # as a version did that knew nothing of it

    check()


def test_the_number_in_an_id_stands_where_it_is_documented() -> None:
    born = Births([5000, 6000], {1: 0x1234_89AB_CDEF})
    stored, _ = rows.encode(Leased(3, 9000, [9, 10], [1, 2], 77, 9500, "", born), 100)
    first, second = stored[:64], stored[64:]
    assert (first[3], int.from_bytes(first[40:48], "little"), first[52:56]) == (0, 5000, bytes(4))
    assert second[3] == rows.CONTINUES | rows.HAS_NUMBER == 33
    assert int.from_bytes(second[40:46], "little") == 6000
    assert int.from_bytes(second[46:48], "little") == 0x1234
    assert int.from_bytes(second[48:52], "little") == 2  # the receives
    assert int.from_bytes(second[52:56], "little") == 0x89AB_CDEF
    stored, _ = rows.encode(Moved(3, 9000, [9, 10], Cause.REJECTED, 8, 20, births=born), 100)
    first, second = stored[:64], stored[64:]
    assert [int.from_bytes(first[at : at + 8], "little") for at in (24, 32, 40)] == [9, 20, 5000]
    assert [int.from_bytes(second[at : at + 8], "little") for at in (24, 32, 40)] == [0x1234_89AB_CDEF, 21, 6000]


def test_the_store_of_a_message_that_came_from_elsewhere_stands_where_it_is_documented() -> None:
    born = Births([5000], {}, {0: 0x2AB_CDEF})
    row, _ = rows.encode(Acked(3, 9000, [9], [77], born), 100)
    assert row[2:4] == bytes([0xAB, rows.BORN_ELSEWHERE | 4])  # 2 << 1 of the flags
    assert row[24:32] == bytes(6) + bytes([0xEF, 0xCD])
    row, _ = rows.encode(Moved(3, 9000, [9], Cause.REJECTED, 8, 20, births=born), 100)
    assert int.from_bytes(row[48:52], "little") == 0x2AB_CDEF


@pytest.mark.parametrize("count", [1, 15, 16, 17, 40, 100])
@pytest.mark.parametrize("block", [b"", b"p" * 30])
def test_the_pieces_of_many_records_are_those_of_each(count: int, block: bytes) -> None:
    bodies = [bytes([n]) * (n % 7) for n in range(count)]
    for blocks in ([block] * count, [block, *[b"other"] * (count - 1)]):
        whole = b"".join(record_pieces(range(5, 5 + count), 1_700_000_000_000, blocks, bodies))
        each = [encode_record(5 + n, 1_700_000_000_000, blocks[n], body) for n, body in enumerate(bodies)]
        assert whole == b"".join(each)


def test_things_that_follow_one_another_have_their_places() -> None:
    assert list(places([7, 7, 7], 100)) == [100, 107, 114]
    assert list(places([7, 8, 9], 100)) == [100, 107, 115]
    assert list(places([0, 0], 100)) == [100, 100]
    assert list(places([3], 100)) == [100]


@given(st.data())
def test_an_event_of_several_queues_is_stored_as_one_for_each(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([Kind.PUBLISHED, Kind.LEASED, Kind.ACKED]))
    event = data.draw(EVENTS[kind])
    count = len(event.sizes if isinstance(event, Published) else event.seqs)  # type: ignore[union-attr]
    ends = sorted({*data.draw(st.lists(st.integers(1, count), max_size=5)), count})
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    numbers = [event.queue, *data.draw(st.lists(u32, min_size=len(sizes) - 1, max_size=len(sizes) - 1))]  # type: ignore[union-attr]
    alone, _ = store([event])
    event.queues = list(zip(numbers, sizes, strict=True))  # type: ignore[union-attr]
    together, page = store([event])
    back = list(rows.decode(together, lambda at, size: page[at : at + size], lambda at: at))
    assert [one.queue for one in back] == numbers  # type: ignore[union-attr]
    assert [len(getattr(one, "sizes", ()) or getattr(one, "seqs", ())) for one in back] == sizes
    # Nothing differs but to which queue a row belongs, and where one begins.
    queue_and_flags = [row[3:5] for row in rows.ROW.iter_unpack(together)]
    expected = [
        (row[3], n, i) for row, (n, i) in zip(rows.ROW.iter_unpack(alone), _places(numbers, sizes), strict=True)
    ]
    assert queue_and_flags == [(flags & ~1 | (1 if i else 0), n) for flags, n, i in expected]
    others = [[row[:3] + row[5:] for row in rows.ROW.iter_unpack(stored)] for stored in (alone, together)]
    assert others[0] == others[1]


@given(st.data())
def test_messages_of_several_queues_share_their_records(data: st.DataObject) -> None:
    once = data.draw(EVENTS[Kind.PUBLISHED])
    assert isinstance(once, Published)
    count, times = len(once.sizes), data.draw(st.integers(2, 4))
    numbers = data.draw(st.lists(u32, min_size=times, max_size=times))
    fanned = msgspec.structs.replace(once, queues=[(number, count) for number in numbers], queue=numbers[0])
    for name in ("priorities", "visible_at", "expires_at", "sizes", "props", "bodies"):
        setattr(fanned, name, getattr(once, name) * times)
    for name in ("groups", "dedups", "tenants"):
        some = getattr(once, name)
        setattr(fanned, name, {i + n * count: text for n in range(times) for i, text in some.items()})
    fanned.named_times = {i + n * count for n in range(times) for i in once.named_times}
    fanned.locations = [0] * count + [~i for i in range(count)] * (times - 1)
    starts = located(fanned.locations, fanned.sizes, 40)
    stored, pieces = rows.encode(fanned, 40, starts)
    page = bytes(40) + b"".join(pieces)
    alone, alone_page = store([once])
    assert page == alone_page, "the records are there once"
    back = list(rows.decode(stored, lambda at, size: page[at : at + size], lambda at: 10**12 + at))
    (expected,) = rows.decode(alone, lambda at, size: page[at : at + size], lambda at: 10**12 + at)
    for n, (number, one) in enumerate(zip(numbers, back, strict=True)):
        assert one == msgspec.structs.replace(expected, queue=number, first_seq=once.first_seq + n * count)  # type: ignore[type-var]


def test_records_that_do_not_follow_one_another_are_named_one_by_one() -> None:
    times: tuple[list[int], list[int]] = ([0] * 3, [0] * 3)
    event = Published(3, 1000, 9, [1, 1, 1], *times, [30, 40, 30], [b""] * 3, [b"a" * 6, b"b" * 16, b"a" * 6], {}, {})
    event.locations = [500, 0, ~0]
    starts = located(event.locations, event.sizes, 100)
    assert starts == [500, 100, 500]
    stored, pieces = rows.encode(event, 100, starts)
    assert b"".join(pieces) == encode_record(10, 1000, b"", b"b" * 16)
    (back,) = rows.decode(stored, lambda at, size: b"", lambda at: 10**12 + at)
    assert isinstance(back, Published)
    assert (back.location, back.locations) == (0, [10**12 + at for at in starts])


def test_a_record_is_brought_once_and_found_from_everywhere() -> None:
    assert located([0, 0, ~0, ~1], [10, 20, 10, 20], 100) == [100, 110, 100, 110]
    assert located([77, 0, ~1, 88, 0], [5, 10, 10, 6, 7], 100) == [77, 100, 100, 88, 110]
    assert located([77, 88], [5, 6], 100) == [77, 88]


def _places(numbers: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(queue, which of its messages) of each row."""
    return [(number, i) for number, size in zip(numbers, sizes, strict=True) for i in range(size)]
