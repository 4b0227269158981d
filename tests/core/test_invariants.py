"""The invariants themselves: every kind of damage to a state is noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from laneway.core.invariants import check_invariants
from laneway.core.message import Settlement
from laneway.core.table import DEAD, DELAYED, FREE, GROUPED, LEASED, READY, STORIED
from tests.core.runner import Core, draft


def busy() -> Core:
    """1 is leased, 2 and 3 ready, 4 and 5 a group, 6 delayed, 8 the dead letter that 7 became."""
    core = Core()
    core.put("dead")
    core.put(dead_letter_queue="dead", max_priority=9)
    core.publish(draft(), draft(), draft(), draft(group="g"), draft(group="g"), draft(delay_ms=9), draft(priority=9))
    (_, seven), _ = core.take(2, consumer="me")
    core.settle(Settlement("reject", seven))
    return core


def set_state(core: Core, seq: int, state: int) -> None:
    core.state.table.slabs[0].state[seq] = state


DAMAGE: dict[str, Callable[[Core], object]] = {
    "a ready message is gone": lambda c: set_state(c, 2, FREE),
    "a ready message is delayed": lambda c: set_state(c, 2, DELAYED),
    "a leased message is ready": lambda c: set_state(c, 1, READY),
    "a delayed message is leased": lambda c: set_state(c, 6, LEASED),
    "a ready message is dead": lambda c: set_state(c, 3, DEAD),
    "a gone message is ready": lambda c: set_state(c, 7, READY),
    "a message is in a queue that is gone": lambda c: c.state.table.slabs[0].queue.__setitem__(2, 77),
    "a message is in another queue": lambda c: c.state.table.slabs[0].queue.__setitem__(2, 1),
    "a message has another priority": lambda c: c.state.table.slabs[0].priority.__setitem__(2, 4),
    "a message has another size": lambda c: c.state.table.slabs[0].size.__setitem__(2, 4),
    "a record is elsewhere": lambda c: c.state.table.slabs[0].location.__setitem__(2, 9 << 32),
    "a slab counts wrong": lambda c: setattr(c.state.table.slabs[0], "live", 3),
    "an extent counts wrong": lambda c: c.state.extents.update({1: 99}),
    "ready counts wrong": lambda c: setattr(c["q"], "ready", 3),
    "leased counts wrong": lambda c: setattr(c["q"], "leased", 3),
    "delayed counts wrong": lambda c: setattr(c["q"], "delayed", 3),
    "a delayed message lost its place": lambda c: setattr(c["q"], "delayed_order", []),
    "bytes count wrong": lambda c: setattr(c["q"], "bytes_waiting", 3),
    "dead elsewhere counts wrong": lambda c: setattr(c["q"], "dead_elsewhere", 3),
    "a dead letter too many": lambda c: c["q"].dead.update({2: None}),
    "a lane counts wrong": lambda c: setattr(c["q"].lanes[5], "count", 3),
    "a lane lost an entry": lambda c: c["q"].lanes[5].chunks[0].pop(),
    "a lane is out of order": lambda c: c["q"].lanes[5].chunks[0].reverse(),
    "the bitmap lacks a priority": lambda c: setattr(c["q"], "bitmap", 0),
    "the bitmap has a priority too many": lambda c: setattr(c["q"], "bitmap", c["q"].bitmap | 1 << 9),
    "a group is out of order": lambda c: c["q"].groups["g"].members.move_to_end(4),
    "a group is not offered": lambda c: setattr(c["q"].groups["g"], "offered", 0),
    "a group lost its place among the heads": lambda c: c["q"].heads.clear(),
    "a member does not know its group": lambda c: c["q"].group_of.pop(4),
    "a grouped message is not marked": lambda c: c.state.table.slabs[0].flags.__setitem__(4, 0),
    "a message is marked as grouped": lambda c: c.state.table.slabs[0].flags.__setitem__(2, GROUPED),
    "a story is missing": lambda c: c.state.stories.pop(8),
    "a message is marked as storied": lambda c: c.state.table.slabs[0].flags.__setitem__(2, STORIED),
    "a consumer is missing": lambda c: c.state.consumers.pop(1),
    "a consumer too many": lambda c: c.state.consumers.update({2: "me"}),
    "the next number was given already": lambda c: setattr(c.state.table, "next_seq", 5),
}


def test_a_sound_state_passes() -> None:
    core = busy()
    assert (core["q"].ready, core["q"].leased, core["q"].delayed, core["q"].dead_elsewhere) == (4, 1, 1, 1)
    check_invariants(core.state)


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_noticed(damage: str) -> None:
    core = busy()
    DAMAGE[damage](core)
    with pytest.raises(AssertionError):
        check_invariants(core.state)
