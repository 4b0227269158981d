"""The demo's count: each message has one end, found from what the demo itself saw."""

from __future__ import annotations

import pytest

from laneway.demo.ledger import Ledger, Tally, disagreements


def test_ends_only_the_server_sees_are_told_by_what_is_left() -> None:
    ledger = Ledger(2, is_bounded=False)
    for message_id in ("acked", "rejected", "exhausted", "kept", "expired", "lost"):
        ledger.published(message_id, is_expiring=message_id == "expired")
    for message_id in ("acked", "rejected", "exhausted"):
        ledger.delivered(message_id, 1)
    ledger.acked("acked")
    ledger.rejected("rejected")
    ledger.released(1)
    ledger.delivered("exhausted", 2)
    ledger.released(2)
    ledger.delivered("kept", 2)
    ledger.acked("kept")
    assert ledger.balance() == Tally(
        published=6, delivered=5, redelivered=2, acked=2, released=1, rejected=1, exhausted=1, expired=1, lost=1
    )
    assert ledger.balance().dead_lettered == 3


def test_a_bounded_queue_pushes_out_what_nobody_saw() -> None:
    ledger = Ledger(5, is_bounded=True)
    ledger.published("one", is_expiring=False)
    assert ledger.so_far().overflowed == 0
    assert (ledger.balance().overflowed, ledger.balance().lost) == (1, 0)


def test_an_ack_may_come_before_its_publisher_hears_of_the_message() -> None:
    ledger = Ledger(5, is_bounded=False)
    ledger.delivered("one", 1)
    ledger.acked("one")
    ledger.published("one", is_expiring=False)
    assert ledger.balance() == Tally(published=1, delivered=1, acked=1)


def test_two_ends_and_two_messages_of_one_id_are_noticed() -> None:
    ledger = Ledger(5, is_bounded=False)
    ledger.published("one", is_expiring=False)
    ledger.acked("one")
    with pytest.raises(AssertionError, match="two ends for the message one"):
        ledger.rejected("one")
    with pytest.raises(AssertionError, match="the id one to two messages"):
        ledger.published("one", is_expiring=False)


def test_disagreements_name_queue_figure_and_both_counts() -> None:
    tally = Tally(published=3, acked=2, lost=1)
    totals = {**Tally(published=3, acked=2).as_dict(), "acked": 3}
    assert disagreements({"orders": tally}, {"orders": totals}) == [
        "orders: acked is 2 by the demo's count, 3 by the server's",
        "orders: 1 messages were confirmed and never seen again",
    ]
    assert disagreements({"orders": Tally(acked=2)}, {"orders": Tally(acked=2).as_dict()}) == []
