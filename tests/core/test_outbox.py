"""The hidden queues of an outbox, and the form of what is in them."""

from __future__ import annotations

from itertools import chain

import pytest

from laneway.core import snapshot
from laneway.core.commands import put_queue
from laneway.core.events import QueuePut
from laneway.core.invariants import check_invariants
from laneway.core.message import Messages
from laneway.core.outbox import (
    ParcelledSettlement,
    decoded_parcel,
    encoded_parcel,
    parcel,
    put_outbox,
)
from laneway.core.settings import QueueSettings
from laneway.core.state import State


def with_outbox() -> State:
    state = State()
    state.partition = 1
    for event in put_outbox(state, 2, 1_000):
        state.apply(event)
    return state


def test_an_outbox_is_made_once() -> None:
    state = with_outbox()
    assert list(put_outbox(state, 2, 2_000)) == []
    assert (state.outboxes[2].vhost, state.outboxes[2].name) == ("", "partition 2")
    check_invariants(state)
    with pytest.raises(AssertionError, match="no outbox for itself"):
        list(put_outbox(state, 1, 2_000))


def test_an_outbox_has_no_name_that_anybody_finds() -> None:
    state = with_outbox()
    assert state.by_name == {} and list(state.queues.values()) == list(state.outboxes.values())
    told: list[object] = []
    state.follow(told.append)
    queue = put_queue(state, "/", "q", QueueSettings(), 1_000, max_queues=1)
    for event in chain(put_outbox(state, 3, 1_000), queue):
        state.apply(event)
    (event,) = told
    assert isinstance(event, QueuePut) and b'"q"' in event.document


def test_a_snapshot_keeps_outboxes() -> None:
    state = snapshot.thaw(snapshot.chunks(snapshot.freeze(with_outbox())))
    assert list(state.outboxes) == [2]
    check_invariants(state)


def test_a_parcel_comes_out_as_it_went_in() -> None:
    messages = Messages(
        [b"one", b"two"], [b"", b"p"], [None, 3], [5, None], None, [None, 9], {0: "g"}, {1: "d"}, {1: "t"}, clamps=True
    )
    given = parcel([(1,), (2, 3)], messages, [ParcelledSettlement(4, [1, 2], [7, 8], "ack")], ("key", b"print"))
    found = decoded_parcel(encoded_parcel(given))
    assert found == given and found.messages() == messages
