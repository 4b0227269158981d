"""A purge in steps leaves what one in a single step leaves, and no step looks at what is another's."""

from __future__ import annotations

import random

import pytest

from laneway.core import commands, purging
from laneway.core.invariants import check_invariants
from laneway.core.message import Draft, Properties, Settlement
from laneway.core.table import SLAB_ROWS
from tests.core.runner import Core, draft, dump, lines_run, replay


def mixed(seed: int) -> Core:
    """A queue with messages of every kind and in every state, and another in the same slabs."""
    chance = random.Random(seed)
    core = Core()
    core.put(fair=chance.random() < 0.5, lease_ms=60_000)
    core.put("other")
    for _ in range(chance.randrange(5, 25)):
        kind = chance.choice(("plain", "priority", "group", "tenant", "delay", "other", "held", "deep"))
        count = chance.randrange(1, 30)
        if kind == "deep":
            core.fill(chance.randrange(20, 60))
        elif kind == "held":
            for _, token in core.take(count):
                action = chance.choice(("hold", "release", "reject", "ack"))
                if action != "hold":
                    core.settle(Settlement(action, token))  # type: ignore[arg-type]
        elif kind == "tenant":
            core.publish(*[Draft(b"x", None, Properties(tenant=chance.choice("ab"))) for _ in range(count)])
        else:
            some = {
                "priority": lambda: draft(priority=chance.randrange(3)),
                "group": lambda: draft(group=chance.choice("gh")),
                "delay": lambda: draft(delay_ms=500),
            }.get(kind, draft)
            core.publish(*[some() for _ in range(count)], queue="other" if kind == "other" else "q")
    return core


def purge(core: Core, *, leased: bool = False, dead: bool = False) -> int:
    """In how many steps."""
    spans = list(purging.spans(core.state, core["q"]))
    assert spans[0][0] == 0 and spans[-1][1] >= core.state.table.next_seq
    assert [end for _, end in spans[:-1]] == [first for first, _ in spans[1:]]
    for span in spans:
        core.run(commands.purge_queue(core.state, core["q"], core.now_ms, leased=leased, dead=dead, span=span))
        check_invariants(core.state)
    return len(spans)


@pytest.mark.parametrize("seed", range(40))
def test_steps_leave_what_a_single_one_leaves(seed: int, either_size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"leased": seed % 2 > 0, "dead": seed % 4 > 1}
    whole, core = mixed(seed), mixed(seed)
    purge(whole, **options)
    monkeypatch.setattr(purging, "SLICE", 12)
    purge(core, **options)
    assert dump(core.state, core.now_ms) == dump(whole.state, core.now_ms)
    queue = core["q"]
    assert queue.ready == queue.delayed == queue.bytes_waiting == 0
    assert purging.weight(queue) == (0 if options["leased"] else queue.leased) + (
        0 if options["dead"] else len(queue.dead)
    )
    after = replay(core.paper.read())
    check_invariants(after)
    assert dump(after, core.now_ms) == dump(core.state, core.now_ms)
    core.publish(*[draft()] * 3)
    assert len(core.take(3)) == 3


def lines_of_the_steps(kind: str, count: int) -> list[int]:
    core = Core(extent_bytes=1 << 15)
    core.put(fair=kind == "tenant")
    for n in range(count):
        core.publish(
            Draft(
                b"x",
                n % 3 if kind == "priority" else None,
                Properties(**{kind: str(n % 7)}) if kind in ("group", "tenant") else Properties(),
                delay_ms=900 if kind == "delay" else None,
            )
        )
    lines = []
    for span in purging.spans(core.state, core["q"]):
        events = commands.purge_queue(core.state, core["q"], core.now_ms, span=span)
        lines.append(lines_run(lambda events=events: core.run(events)))  # type: ignore[misc]
    check_invariants(core.state)
    assert not purging.weight(core["q"]) and not core.state.extents
    return lines


@pytest.mark.parametrize("kind", ["group", "delay"])
def test_no_step_costs_more_than_others_however_deep_the_queue_is(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "SLICE", 300)
    short, deep = lines_of_the_steps(kind, 3 * SLAB_ROWS), lines_of_the_steps(kind, 9 * SLAB_ROWS)
    assert len(deep) >= 9 and max(deep) < 1.3 * max(short), (short, deep)


@pytest.mark.parametrize(("kind", "lines"), [("plain", 3), ("priority", 20), ("tenant", 3)])
def test_slabs_of_messages_that_are_alike_go_whole(kind: str, lines: int) -> None:
    short, deep = lines_of_the_steps(kind, 3 * SLAB_ROWS), lines_of_the_steps(kind, 9 * SLAB_ROWS)
    assert sum(deep) - sum(short) < 6 * lines * SLAB_ROWS, "one by one it would be some forty lines a message"


@pytest.mark.parametrize("fair", [False, True])
def test_what_comes_between_two_steps_stays(fair: bool, either_size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "SLICE", 12)
    core = Core()
    core.put(fair=fair)
    core.publish(*[draft(group="g")] * 20, *[draft(delay_ms=500)] * 20)
    first, *rest = purging.spans(core.state, core["q"])
    core.run(commands.purge_queue(core.state, core["q"], core.now_ms, span=first))
    core.publish(draft(), draft(group="g"), draft(delay_ms=500), Draft(b"x", None, Properties(tenant="a")))
    for span in rest or [first]:
        core.run(commands.purge_queue(core.state, core["q"], core.now_ms, span=span))
        check_invariants(core.state)
    assert (core["q"].ready, core["q"].delayed) == (3, 1)
