"""Exchanges do what the model does, whatever is declared, bound and deleted in whatever order; and routing through many
bindings costs what it matches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneway.core import exchanges, matching
from laneway.core.exchanges import Binding, ExchangeSettings
from laneway.core.invariants import check_invariants
from laneway.errors import LanewayError, QueueNotFound

from .exchange_model import Model
from .runner import dump, lines_run, replay
from .test_exchanges import Net

QUEUES = ["a", "b", "c"]
DECLARED = ["x", "y", "z"]
EXCHANGES = [*DECLARED, "amq.topic", "amq.headers", "amq.direct"]
TYPES = ["direct", "topic", "fanout", "headers"]

pattern_words = st.sampled_from(["a", "b", "*", "#", ""])
patterns = st.lists(pattern_words, max_size=4).map(".".join)
keys = st.lists(st.sampled_from(["a", "b", "", "*"]), max_size=5).map(".".join)
values = st.sampled_from([1, True, 1.0, "1", b"1", None])
headers = st.dictionaries(st.sampled_from(["p", "q", "x-p"]), values, max_size=3)
x_match = st.sampled_from([{}, *({"x-match": how} for how in matching.X_MATCHES)])
arguments = st.builds(lambda how, pairs: {**how, **pairs}, x_match, headers)
exchange_settings = st.builds(
    ExchangeSettings,
    type=st.sampled_from(TYPES),
    durable=st.booleans(),
    auto_delete=st.booleans(),
    alternate_exchange=st.sampled_from([None, None, "", *EXCHANGES, "nowhere"]),
)
bindings = st.one_of(
    st.builds(Binding, st.sampled_from(EXCHANGES), st.just("queue"), st.sampled_from(QUEUES), patterns, arguments),
    st.builds(
        Binding, st.sampled_from(EXCHANGES), st.just("exchange"), st.sampled_from(EXCHANGES), patterns, arguments
    ),
)
steps = st.one_of(
    st.tuples(st.just("declare"), st.sampled_from(DECLARED), exchange_settings),
    st.tuples(st.just("bind"), bindings),
    st.tuples(st.just("bind"), bindings),
    st.tuples(st.just("unbind"), st.one_of(bindings, st.integers(0, 20))),
    st.tuples(st.just("delete"), st.sampled_from(EXCHANGES), st.booleans()),
    st.tuples(st.just("put_queue"), st.sampled_from(QUEUES)),
    st.tuples(st.just("delete_queue"), st.sampled_from(QUEUES)),
    st.tuples(st.just("restart"), st.sampled_from(["replay", "snapshot"])),
)
messages = st.tuples(st.sampled_from(["", *EXCHANGES]), keys, headers)


def outcome(call: Callable[[], object]) -> type[LanewayError] | None:
    try:
        call()
    except LanewayError as wrong:
        return type(wrong)
    return None


def step(net: Net, model: Model, what: str, *given: Any) -> None:
    if what == "declare":
        name, wanted = given
        plain = {f: getattr(wanted, f) for f in wanted.__struct_fields__}
        assert outcome(lambda: net.exchange(name, **plain)) == model.declare(name, wanted)
    elif what == "bind":
        assert outcome(lambda: net.add(given[0])) == model.bind(given[0])
    elif what == "unbind":
        binding = given[0]
        if isinstance(binding, int):  # one that is there
            if not model.bindings:
                return
            binding = model.bindings[binding % len(model.bindings)]
        net.remove(binding)
        model.unbind(binding)
    elif what == "delete":
        name, if_unused = given
        assert outcome(lambda: net.drop(name, if_unused=if_unused)) == model.delete(name, if_unused)
    elif what == "put_queue":
        net.queues(*given)
        model.queues.update(given)
    elif what == "delete_queue":
        known = ("/", given[0]) in net.state.by_name
        if known:
            net.drop_queue(given[0])
        assert model.delete_queue(given[0]) == (None if known else QueueNotFound)
    else:
        net.restart(*given)


def agree(net: Net, model: Model, exchange: str, key: str, given: dict[str, Any]) -> None:
    if exchange not in model.exchanges:
        assert net.state.topology.find("/", exchange) is None
        return
    assert net.route(exchange, key, given) == sorted(model.route(exchange, key, given))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(DECLARED), exchange_settings), max_size=4),
    st.lists(bindings, max_size=8),
    st.lists(steps, max_size=12),
    st.lists(messages, min_size=1, max_size=6),
)
def test_routes_are_those_of_the_model(
    declared: list[Any], bound: list[Any], history: list[Any], asked: list[Any]
) -> None:
    net, model = Net(), Model()
    begin = [("put_queue", name) for name in QUEUES]
    begin += [("declare", *d) for d in declared] + [("bind", b) for b in bound]  # type: ignore[misc]
    for what in begin:
        step(net, model, *what)
    for what in history:
        for message in asked:
            agree(net, model, *message)
        step(net, model, *what)
        check_invariants(net.state)
        assert net.state.topology.binding_count == len(model.bindings)
    for message in asked:
        agree(net, model, *message)
    assert dump(replay(net.paper.read()), net.now_ms) == dump(net.state, net.now_ms)


@settings(max_examples=200, deadline=None)
@given(st.lists(patterns, min_size=1, max_size=12), st.lists(keys, min_size=1, max_size=6), st.data())
def test_topic_patterns_of_all_kinds(bound: list[str], asked: list[str], data: st.DataObject) -> None:
    """Many patterns in one trie, then all of them taken off again in any order."""
    net, model = Net(), Model()
    step(net, model, "put_queue", *QUEUES)
    there = [Binding("amq.topic", "queue", QUEUES[i % 3], pattern) for i, pattern in enumerate(bound)]
    for binding in there:
        step(net, model, "bind", binding)
    for binding in data.draw(st.permutations(there)):
        for key in asked:
            agree(net, model, "amq.topic", key, {})
        step(net, model, "unbind", binding)
    assert net.state.topology.exchanges == {}


@settings(max_examples=200, deadline=None)
@given(st.lists(arguments, min_size=1, max_size=12), st.lists(headers, min_size=1, max_size=6), st.data())
def test_headers_of_all_kinds(bound: list[dict[str, Any]], asked: list[dict[str, Any]], data: st.DataObject) -> None:
    net, model = Net(), Model()
    step(net, model, "put_queue", *QUEUES)
    there = [Binding("amq.headers", "queue", QUEUES[i % 3], "", given) for i, given in enumerate(bound)]
    for binding in there:
        step(net, model, "bind", binding)
    for binding in data.draw(st.permutations(there)):
        for message in asked:
            agree(net, model, "amq.headers", "", message)
        step(net, model, "unbind", binding)
    assert net.state.topology.exchanges == {}


# What a route costs


MANY: dict[str, tuple[Callable[[int], dict[str, Any]], str, dict[str, Any]]] = {
    # type: the i-th binding, and a message that some few of them match
    "direct": (lambda i: {"key": f"k{i}"}, "k7", {}),
    "topic": (lambda i: {"key": f"s.*.k{i}.#"}, "s.t.k7.u.v", {}),
    "topic, all begin with #": (lambda i: {"key": f"#.k{i}.*"}, "s.t.k7.u", {}),
    "topic, numbers in the middle": (lambda i: {"key": f"k{i % 100}.*.l{i // 100}"}, "k7.s.l0", {}),
    "headers, all": (lambda i: {"kind": "order", "number": i}, "", {"kind": "order", "number": 7}),
    "headers, any": (lambda i: {"x__match": "any", "number": i, "other": -i}, "", {"number": 7, "other": 1}),
    "headers, many names": (lambda i: {"kind": "order", f"n{i}": 1}, "", {"kind": "order", "n7": 1}),
    "headers, pairs": (lambda i: {"p": i % 100, "q": i // 100, "r": None}, "", {"p": 7, "q": 0, "r": 1}),
}


@pytest.mark.parametrize("case", MANY)
def test_routing_through_ten_thousand_bindings_costs_what_matching_costs(case: str) -> None:
    binding, key, given = MANY[case]

    def cost(count: int) -> int:
        net = Net()
        net.queues("a", "b")
        net.exchange("x", case.partition(",")[0])
        for i in range(count):
            net.bind("x", "a" if i % 2 else "b", **binding(i))
        net.state.topology.changed()  # nothing is remembered
        found = net.state.topology.route("/", "x", key, given)
        assert found, "the message of this case matches something"
        net.state.topology.changed()
        return lines_run(lambda: net.state.topology.route("/", "x", key, given))

    few, many = cost(10), cost(10_000)
    assert 0 < few < 400
    assert many <= 2 * few, f"{few} lines with 10 bindings, {many} with 10,000"


def test_a_scan_would_be_noticed() -> None:
    index = matching.TopicIndex()
    for i in range(1000):
        index.add(f"*.k{i}", {}, i)
    scan = [matching.TopicIndex() for _ in range(100)]
    assert lines_run(lambda: [one.match("s.k7", None, matching.Steps()) for one in scan]) > 20 * lines_run(
        lambda: index.match("s.k7", None, matching.Steps())
    )


def test_patterns_full_of_hashes_cost_no_more_than_their_nodes() -> None:
    net = Net()
    net.queues("a", "b")
    net.exchange("x", "topic")
    net.bind("x", "a", ".".join(["#", "s"] * 60))
    net.bind("x", "b", ".".join(["#", "*"] * 60))
    key = ".".join(["s"] * 120)
    assert net.route("x", key) == ["a", "b"]
    net.state.topology.changed()
    assert lines_run(lambda: net.state.topology.route("/", "x", key)) < 120 * 240 * 20


def test_a_remembered_route_is_found_at_once() -> None:
    net = Net()
    net.queues("a")
    net.exchange("x", "topic")
    net.bind("x", "a", "#.#.#")
    assert net.route("x", "s.t.u.v") == ["a"]
    assert lines_run(lambda: net.state.topology.route("/", "x", "s.t.u.v")) < 10


def test_a_headers_exchange_looks_at_no_header_that_no_binding_names() -> None:
    class Unwilling:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("looked at")

        __hash__ = None  # type: ignore[assignment]

    net = Net()
    net.queues("a")
    net.bind("amq.headers", "a", p=1)
    assert net.state.topology.route("/", "amq.headers", "", {"p": 1, "q": Unwilling()})


@pytest.mark.parametrize("kind", TYPES)
def test_an_index_that_everything_was_taken_from_holds_nothing(kind: str) -> None:
    index = exchanges.INDEXES[kind]()
    there = [
        (f"k{i % 7}.*.#.l{i}", {"p": i, f"n{i}": None, "x-match": matching.X_MATCHES[i % 4]}, i % 5) for i in range(40)
    ]
    for entry in there + there:
        index.add(*entry)
    for entry in there + there[::-1]:
        index.remove(*entry)
    left = vars(index)
    assert left["_root"].is_bare if kind == "topic" else not any(left.values()), left
