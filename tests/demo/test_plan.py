"""The scenario: the same for the same seed, and with everything in it that the demo promises."""

from __future__ import annotations

from collections import Counter

import pytest

from laneway.demo.plan import BURST, CRASH, LANES, NOISY, OUTAGE, POISON, Plan, draw


@pytest.fixture(scope="module")
def plan() -> Plan:
    return draw(60, 7, 250)


def test_the_same_seed_gives_the_same_messages_and_another_seed_others(plan: Plan) -> None:
    assert draw(60, 7, 250).messages == plan.messages
    assert draw(60, 8, 250).messages != plan.messages


def test_the_rate_is_what_was_asked_for_and_the_burst_comes_on_top(plan: Plan) -> None:
    usual = sum(round(250 * 60 * lane.share) for lane in LANES)
    extra = round(0.45 * round(250 * 60 * 0.25))
    assert usual == 15_000
    assert plan.message_count == usual + extra


def test_messages_are_in_the_order_of_their_times_within_the_run(plan: Plan) -> None:
    for messages in plan.messages.values():
        times = [message.at_s for message in messages]
        assert times == sorted(times)
        assert 0 <= times[0] and times[-1] < 60


def test_every_tier_is_there() -> None:
    assert {lane.tier for lane in LANES} == {"critical", "normal", "low"}


def test_keys_are_skewed_and_spread_over_all_tenants(plan: Plan) -> None:
    everything = [message for messages in plan.messages.values() for message in messages]
    keys = Counter(message.key for message in everything)
    top = sum(count for _, count in keys.most_common(10))
    assert len(keys) > 500
    assert 0.15 * len(everything) < top < 0.5 * len(everything)
    assert all(message.key.startswith(f"{message.tenant}-") for message in everything)


def test_the_noisy_tenant_sends_most_of_the_mail_in_its_burst_and_not_before(plan: Plan) -> None:
    def share(start: float, end: float) -> float:
        tenants = [m.tenant for m in plan.messages["emails"] if start * 60 <= m.at_s < end * 60]
        return tenants.count(NOISY) / len(tenants)

    assert share(*BURST) > 0.5
    assert share(0, BURST[0]) < 0.25


def test_poison_carries_an_error_whose_words_repeat_and_whose_numbers_do_not(plan: Plan) -> None:
    errors = [m.payload["error"] for m in plan.messages["payments"] if m.payload.get("fault") == POISON]
    assert len(errors) > 15
    assert len(set(errors)) > 0.8 * len(errors)
    assert len({error.split(":")[0] for error in errors}) == 2


def test_no_message_with_a_fault_has_a_time_to_live(plan: Plan) -> None:
    both = [m for messages in plan.messages.values() for m in messages if m.ttl_s and "fault" in m.payload]
    assert both == []
    assert any(m.ttl_s for m in plan.messages["emails"])
    assert any(m.payload.get("fault") == CRASH for m in plan.messages["fraud-checks"])


def test_the_outage_is_in_the_middle_and_hits_only_some_queues(plan: Plan) -> None:
    middle = sum(OUTAGE) / 2 * 60
    assert {lane.name for lane in LANES if plan.is_out(lane, middle)} == {"payments", "orders", "emails"}
    assert not any(plan.is_out(lane, at) for lane in LANES for at in (0, 20, 40, 59))


def test_the_chapters_tell_what_happens(plan: Plan) -> None:
    told = [plan.chapter(at) for at in (1, 15, 24, 30, 45, 61)]
    assert len(set(told)) == 6
    assert NOISY in told[1] and "payments, orders, emails are down" in told[3]
