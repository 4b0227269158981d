"""Exchanges and bindings: what reaches which queue, what is remembered, and what goes with what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import msgspec
import pytest

from laneway.core import commands, exchanges, snapshot
from laneway.core import topology_commands as topology
from laneway.core.events import Bound, ExchangeDeleted, ExchangePut, Unbound
from laneway.core.exchanges import BUILT_IN, Binding, ExchangeSettings, Hop, message_delay_ms
from laneway.core.invariants import check_invariants
from laneway.core.matching import HeadersIndex, Steps, Target, TopicIndex
from laneway.core.settings import QueueSettings
from laneway.errors import (
    ExchangeExists,
    ExchangeInUse,
    ExchangeNotFound,
    InvalidInput,
    LimitExceeded,
    QueueNotFound,
    RouteTooLong,
)

from .runner import Core, dump, replay


class Net(Core):
    """A core with short words for exchanges and bindings."""

    def exchange(self, name: str, type: str = "direct", vhost: str = "/", **settings: Any) -> list[Any]:
        wanted = ExchangeSettings(type=type, **settings)  # type: ignore[arg-type]
        return self.run(
            topology.declare_exchange(self.state, vhost, name, wanted, self.now_ms, max_exchanges=self.max_exchanges)
        )

    max_exchanges = 20_000
    max_bindings = 20_000

    def drop(self, name: str, vhost: str = "/", *, if_unused: bool = False) -> list[Any]:
        return self.run(topology.delete_exchange(self.state, vhost, name, self.now_ms, if_unused=if_unused))

    def queues(self, *names: str, vhost: str = "/") -> None:
        for name in names:
            self.run(commands.put_queue(self.state, vhost, name, QueueSettings(), self.now_ms, max_queues=20_000))

    def drop_queue(self, name: str) -> None:
        self.run(commands.delete_queue(self.state, self[name], self.now_ms, if_empty=False))

    def bind(self, source: str, queue: str, key: str = "", vhost: str = "/", **arguments: Any) -> list[Any]:
        return self.add(Binding(source, "queue", queue, key, named(arguments)), vhost)

    def bind_exchange(self, source: str, to: str, key: str = "", vhost: str = "/", **arguments: Any) -> list[Any]:
        return self.add(Binding(source, "exchange", to, key, named(arguments)), vhost)

    def add(self, binding: Binding, vhost: str = "/") -> list[Any]:
        return self.run(topology.bind(self.state, vhost, binding, self.now_ms, max_bindings=self.max_bindings))

    def unbind(self, source: str, queue: str, key: str = "", vhost: str = "/", **arguments: Any) -> list[Any]:
        return self.remove(Binding(source, "queue", queue, key, named(arguments)), vhost)

    def remove(self, binding: Binding, vhost: str = "/") -> list[Any]:
        return self.run(topology.unbind(self.state, vhost, binding, self.now_ms))

    def route(self, exchange: str, key: str = "", headers: dict[str, Any] | None = None, vhost: str = "/") -> list[str]:
        found = self.state.topology.route(vhost, exchange, key, headers)
        assert len(set(found)) == len(found), "a queue is named twice"
        explained = self.state.topology.explain(vhost, exchange, key, headers)
        names = sorted(self.state.queues[number].name for number in found)
        assert sorted({route.queue for route in explained}) == names, "explain says something else"
        return names


def named(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "-"): value for name, value in arguments.items()}


@pytest.fixture
def net() -> Net:
    net = Net()
    net.queues("a", "b", "c", "d")
    return net


# The default exchange and the built-in ones


def test_the_default_exchange_leads_to_the_queue_of_that_name(net: Net) -> None:
    assert net.route("", "b") == ["b"]
    assert net.route("", "nobody") == []
    net.queues("b", vhost="other")
    ours, theirs = net.state.topology.route("/", "", "b"), net.state.topology.route("other", "", "b")
    assert ours != theirs and len(ours) == len(theirs) == 1


def test_nothing_is_bound_to_or_from_the_default_exchange(net: Net) -> None:
    net.exchange("x")
    for binding in (Binding("", "queue", "a", "k"), Binding("x", "exchange", "", "k")):
        with pytest.raises(InvalidInput, match="default exchange"):
            net.add(binding)


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name])
def test_built_in_exchanges_are_in_every_virtual_host(net: Net, name: str) -> None:
    assert net.route(name, "k", vhost="elsewhere") == []
    net.bind(name, "a", "k")
    net.queues("far", vhost="elsewhere")
    assert net.route(name, "k") == ["a"]
    assert net.route(name, "k", vhost="elsewhere") == []
    net.restart()
    assert net.route(name, "k") == ["a"]
    net.unbind(name, "a", "k")
    assert net.route(name, "k") == []
    assert net.state.topology.exchanges == {}, "a built-in exchange is kept in memory without need"


def test_built_in_exchanges_cannot_be_deleted_or_changed_or_added_to(net: Net) -> None:
    for name in BUILT_IN:
        with pytest.raises(InvalidInput, match="always there"):
            net.drop(name)
    assert net.exchange("amq.topic", "topic") == []
    with pytest.raises(ExchangeExists):
        net.exchange("amq.topic", "direct")
    with pytest.raises(InvalidInput, match="reserved"):
        net.exchange("amq.mine")


# Types


def test_direct_routes_by_the_whole_key(net: Net) -> None:
    net.exchange("x", "direct")
    net.bind("x", "a", "red")
    net.bind("x", "b", "red")
    net.bind("x", "b", "blue")
    assert net.route("x", "red") == ["a", "b"]
    assert net.route("x", "blue") == ["b"]
    assert net.route("x", "re") == net.route("x", "red.") == net.route("x", "") == []


def test_fanout_ignores_the_key(net: Net) -> None:
    net.exchange("x", "fanout")
    net.bind("x", "a", "one")
    net.bind("x", "b")
    assert net.route("x", "whatever") == ["a", "b"]


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("a.b", ["a.b"], ["", "a", "a.b.c", "b", "a.", ".a.b"]),
        ("*", ["a", "*", "#"], ["", "a.b", "."]),
        ("#", ["", "a", "a.b", ".", "..", "a..b"], []),
        ("a.*", ["a.b", "a.", "a.*"], ["a", "a.b.c", "b.a"]),
        ("a.#", ["a", "a.b", "a.b.c", "a."], ["", "b", "b.a", "ab"]),
        ("#.a", ["a", "b.a", "c.b.a", "a.a"], ["", "a.b", "ba"]),
        ("a.#.b", ["a.b", "a.x.b", "a.x.y.b", "a.b.b"], ["a", "b", "a.b.c"]),
        ("*.#", ["a", "a.b", "."], [""]),
        ("#.*", ["a", "a.b"], [""]),
        ("#.#", ["", "a", "a.b.c"], []),
        ("*.*", ["a.b", "."], ["a", "a.b.c"]),
        ("#.a.#.b.#", ["a.b", "x.a.y.b.z", "a.a.b.b"], ["b.a", "a", "b"]),
        ("", [""], ["a", "."]),
        (".", ["."], ["", "a", ".."]),
        ("a*.b#", ["a*.b#"], ["ax.by", "a.b"]),
    ],
)
def test_topic_patterns(net: Net, pattern: str, matching: list[str], other: list[str]) -> None:
    net.exchange("x", "topic")
    net.bind("x", "a", pattern)
    assert [key for key in matching + other if net.route("x", key)] == matching
    net.unbind("x", "a", pattern)
    assert [key for key in matching + other if net.route("x", key)] == []


def test_unbinding_one_topic_pattern_leaves_those_that_share_its_words(net: Net) -> None:
    net.exchange("x", "topic")
    for queue, pattern in (("a", "s.#"), ("b", "s.*.t"), ("c", "s.u.t"), ("d", "s")):
        net.bind("x", queue, pattern)
    assert net.route("x", "s.u.t") == ["a", "b", "c"]
    net.unbind("x", "c", "s.u.t")
    assert net.route("x", "s.u.t") == ["a", "b"]
    net.unbind("x", "a", "s.#")
    assert net.route("x", "s") == ["d"]
    net.unbind("x", "d", "s")
    assert net.route("x", "s.u.t") == ["b"]


@pytest.mark.parametrize(
    ("arguments", "matching", "other"),
    [
        ({}, [{}, {"p": 1}], []),
        ({"x-match": "any"}, [], [{}, {"p": 1}]),
        ({"p": 1, "q": "s"}, [{"p": 1, "q": "s"}, {"p": 1, "q": "s", "r": 0}], [{}, {"p": 1}, {"p": 1, "q": "t"}]),
        ({"x-match": "any", "p": 1, "q": "s"}, [{"p": 1}, {"q": "s"}, {"p": 2, "q": "s"}], [{}, {"p": 2}, {"r": 1}]),
        ({"p": None}, [{"p": 1}, {"p": None}, {"p": ""}], [{}, {"q": 1}]),
        ({"x-match": "any", "p": None, "q": 1}, [{"p": 5}, {"q": 1}], [{}, {"q": 2}]),
        ({"p": None, "q": 1}, [{"p": 5, "q": 1}], [{"q": 1}, {"p": 5}, {"p": 5, "q": 2}]),
        ({"x-a": 1, "p": 1}, [{"p": 1}, {"p": 1, "x-a": 2}], [{"x-a": 1}]),
        ({"x-match": "all-with-x", "x-a": 1, "p": 1}, [{"p": 1, "x-a": 1}], [{"p": 1}, {"p": 1, "x-a": 2}]),
        ({"x-match": "any", "x-a": 1, "p": 1}, [{"p": 1}], [{"x-a": 1}, {"x-match": "any"}]),
        ({"x-match": "any-with-x", "x-a": 1, "p": 1}, [{"p": 1}, {"x-a": 1}], [{"x-a": 2}, {"x-match": "any-with-x"}]),
        # What is alike: all of this is what RabbitMQ 3.10 answers.
        ({"p": 1}, [{"p": 1}, {"p": 1.0}], [{"p": True}, {"p": "1"}, {"p": b"1"}, {"p": 1.5}, {"p": 1 << 70}]),
        ({"p": 1.0}, [{"p": 1}, {"p": 1.0}], [{"p": True}, {"p": float("inf")}, {"p": 1e300}]),
        ({"p": "é"}, [{"p": "é"}, {"p": "é".encode()}], [{"p": "e"}, {"p": ["é"]}, {"p": "\ud800"}]),
        ({"p": b"\xff"}, [{"p": b"\xff"}], [{"p": "\xff"}]),
        ({"p": True}, [{"p": True}], [{"p": 1}, {"p": False}, {"p": "true"}]),
        (
            {"p": [1, {"k": "v"}]},
            [{"p": [1, {"k": "v"}]}],
            [{"p": [1]}, {"p": [1.0, {"k": "v"}]}, {"p": [1, {"k": b"v"}]}],
        ),
    ],
)
def test_headers(net: Net, arguments: dict[str, Any], matching: list[Any], other: list[Any]) -> None:
    net.exchange("x", "headers")
    net.add(Binding("x", "queue", "a", "", arguments))
    assert [given for given in matching + other if net.route("x", "", given)] == matching
    assert bool(net.route("x", "", None)) == ({} in matching)
    net.remove(Binding("x", "queue", "a", "", arguments))
    assert [given for given in matching + other if net.route("x", "", given)] == []


def test_a_header_that_no_bytes_can_hold_matches_by_its_presence_alone(net: Net) -> None:
    net.exchange("x", "headers")
    net.bind("x", "a", p=1)
    net.bind("x", "b", p=None)
    assert net.route("x", "", {"p": object()}) == ["b"]


@pytest.mark.parametrize("how", ["some", "", None, 1, ["all"], True])
def test_what_x_match_may_be(net: Net, how: Any) -> None:
    net.exchange("x", "headers")
    with pytest.raises(InvalidInput, match="x-match is one of all, any"):
        net.bind("x", "a", x__match=how)
    net.exchange("y", "direct")
    net.bind("y", "a", x__match=how)  # means nothing there


# Walking on


def test_a_queue_is_reached_once_however_many_ways_lead_there(net: Net) -> None:
    net.exchange("x", "topic")
    net.exchange("y", "fanout")
    for key in ("#", "a.*", "a.b", "*.b"):
        net.bind("x", "a", key)
    net.bind_exchange("x", "y", "a.#")
    net.bind("y", "a")
    assert net.route("x", "a.b") == ["a"]
    assert len(net.state.topology.explain("/", "x", "a.b")) == 5


def test_exchanges_lead_to_exchanges_also_in_circles(net: Net) -> None:
    for name in ("x", "y", "z"):
        net.exchange(name, "topic")
    net.bind_exchange("x", "y", "#")
    net.bind_exchange("y", "z", "k.#")
    net.bind_exchange("z", "x", "#")
    net.bind_exchange("z", "z", "#")
    net.bind("x", "a", "#")
    net.bind("y", "b", "#")
    net.bind("z", "c", "k.*")
    assert net.route("x", "k.l") == ["a", "b", "c"]
    assert net.route("x", "l") == ["a", "b"]
    assert net.route("z", "l") == ["a", "b"]
    assert net.route("z", "k") == ["a", "b"]


def test_an_internal_exchange_is_reached_through_others(net: Net) -> None:
    net.exchange("x", "fanout")
    net.exchange("inside", "direct", internal=True)
    net.bind_exchange("x", "inside")
    net.bind("inside", "a", "k")
    assert net.route("x", "k") == ["a"]


def test_the_alternate_exchange_takes_what_matches_nothing(net: Net) -> None:
    net.exchange("x", "direct", alternate_exchange="rest")
    net.bind("x", "a", "k")
    assert net.route("x", "other") == [], "it is not there yet"
    net.exchange("rest", "direct", alternate_exchange="last")
    net.exchange("last", "fanout", alternate_exchange="x")
    net.bind("rest", "b", "l")
    net.bind("last", "c")
    assert net.route("x", "k") == ["a"]
    assert net.route("x", "l") == ["b"]
    assert net.route("x", "other") == ["c"]
    net.unbind("last", "c")
    assert net.route("x", "other") == [], "they go round"


def test_an_exchange_that_leads_to_an_exchange_has_matched(net: Net) -> None:
    """Whatever becomes of the message there, as RabbitMQ does it."""
    net.exchange("x", "fanout", alternate_exchange="rest")
    net.exchange("y", "direct")
    net.exchange("rest", "fanout")
    net.bind("rest", "a")
    net.bind_exchange("x", "y")
    assert net.route("x", "k") == []


def test_an_alternate_exchange_on_the_way_takes_its_share(net: Net) -> None:
    net.exchange("x", "fanout")
    net.exchange("y", "direct", alternate_exchange="rest")
    net.exchange("rest", "fanout")
    net.bind("x", "a")
    net.bind_exchange("x", "y")
    net.bind("rest", "b")
    assert net.route("x", "k") == ["a", "b"]


def test_the_default_exchange_as_the_alternate_one_leads_nowhere(net: Net) -> None:
    """As RabbitMQ 3.10 has it."""
    net.exchange("x", "direct", alternate_exchange="")
    assert net.route("x", "c") == []


def test_explain_names_the_chain_of_bindings(net: Net) -> None:
    net.exchange("x", "topic")
    net.exchange("y", "direct", alternate_exchange="z")
    net.exchange("z", "fanout")
    net.bind_exchange("x", "y", "k.#")
    net.bind("x", "a", "*.l")
    net.bind("x", "a", "never")
    net.bind("z", "b")
    a, b = net.state.topology.explain("/", "x", "k.l")
    assert (a.queue, a.hops) == ("a", (Hop("x", "binding", Binding("x", "queue", "a", "*.l")),))
    assert b.queue == "b"
    assert [(hop.exchange, hop.why, hop.binding.destination) for hop in b.hops] == [
        ("x", "binding", "y"),
        ("y", "alternate", "z"),
        ("z", "binding", "b"),
    ]
    net.unbind("z", "b")
    assert [route.queue for route in net.state.topology.explain("/", "x", "k.l")] == ["a"]
    (default,) = net.state.topology.explain("/", "", "c")
    assert default.hops == (Hop("", "default", Binding("", "queue", "c", "c")),)


def test_an_exchange_that_is_not_there_is_an_error(net: Net) -> None:
    net.exchange("x", vhost="other")
    for ask in (net.state.topology.route, net.state.topology.explain):
        with pytest.raises(ExchangeNotFound, match="no exchange 'x'"):
            ask("/", "x", "k")
    with pytest.raises(ExchangeNotFound, match="in virtual host 'third'"):
        net.route("x", "k", vhost="third")


# Declaring, binding, deleting


def test_declaring_again_changes_nothing(net: Net) -> None:
    (event,) = net.exchange("x", "topic", arguments={"p": 1})
    assert isinstance(event, ExchangePut)
    assert net.exchange("x", "topic", arguments={"p": 1}) == []
    for settings in ({"type": "direct"}, {"durable": False}, {"arguments": {"p": True}}, {"arguments": {}}):
        with pytest.raises(ExchangeExists, match="other settings"):
            net.exchange("x", **{"type": "topic", "arguments": {"p": 1}, **settings})


def test_bindings_differ_by_their_key_and_arguments(net: Net) -> None:
    net.exchange("x", "direct")
    (event,) = net.bind("x", "a", "k")
    assert isinstance(event, Bound) and event.queue == net["a"].number
    assert net.bind("x", "a", "k") == []
    assert net.bind("x", "a", "k", p=1) and net.bind("x", "a", "k", p=True)
    assert net.state.topology.binding_count == 3
    assert net.unbind("x", "a", "k", p=1.0) == net.unbind("x", "b", "k") == net.unbind("nowhere", "a", "k") == []
    (event,) = net.unbind("x", "a", "k")
    assert isinstance(event, Unbound)
    net.unbind("x", "a", "k", p=1)
    assert net.route("x", "k") == ["a"], "one of three is left"
    net.unbind("x", "a", "k", p=True)
    assert net.route("x", "k") == []


def test_both_ends_of_a_binding_must_be_there(net: Net) -> None:
    net.exchange("x")
    with pytest.raises(ExchangeNotFound):
        net.bind("y", "a")
    with pytest.raises(QueueNotFound):
        net.bind("x", "nobody")
    with pytest.raises(ExchangeNotFound):
        net.bind_exchange("x", "y")
    assert net.state.topology.binding_count == 0


def test_a_deleted_queue_takes_its_bindings_along(net: Net) -> None:
    net.exchange("x", "topic")
    net.exchange("h", "headers")
    net.bind("x", "a", "#")
    net.bind("x", "b", "#")
    net.bind("h", "a", p=1)
    net.bind("amq.fanout", "a")
    net.drop_queue("a")
    assert net.route("x", "k") == ["b"]
    assert net.route("h", "", {"p": 1}) == net.route("amq.fanout") == []
    net.queues("a")
    assert net.route("x", "k") == ["b"], "the new queue of that name has no bindings"
    assert net.state.topology.binding_count == 1
    check_invariants(net.state)


def test_a_deleted_exchange_takes_all_its_bindings_along(net: Net) -> None:
    for name in ("x", "y", "z"):
        net.exchange(name, "fanout")
    net.bind_exchange("x", "y")
    net.bind_exchange("y", "z")
    net.bind_exchange("y", "y")
    net.bind("y", "a")
    net.bind("z", "b")
    (event,) = net.drop("y")
    assert isinstance(event, ExchangeDeleted)
    assert net.route("x") == []
    assert net.state.topology.binding_count == 1
    net.exchange("y", "fanout")
    assert net.route("x") == net.route("y") == []
    check_invariants(net.state)


def test_an_exchange_in_use_is_kept_if_asked_so(net: Net) -> None:
    net.exchange("x", "fanout")
    net.exchange("y", "fanout")
    net.bind_exchange("x", "y")
    with pytest.raises(ExchangeInUse):
        net.drop("x", if_unused=True)
    net.drop("y", if_unused=True)  # what leads to it does not count
    net.drop("x", if_unused=True)
    with pytest.raises(ExchangeNotFound):
        net.drop("x")


def test_an_auto_delete_exchange_goes_with_its_last_binding(net: Net) -> None:
    net.exchange("x", "fanout", auto_delete=True)
    net.bind("x", "a")
    net.bind("x", "b")
    net.unbind("x", "a")
    assert net.route("x") == ["b"]
    net.drop_queue("b")
    with pytest.raises(ExchangeNotFound):
        net.route("x")
    check_invariants(net.state)


def test_an_auto_delete_exchange_that_never_had_a_binding_stays(net: Net) -> None:
    net.exchange("x", "fanout", auto_delete=True)
    net.exchange("y", "fanout")
    net.bind_exchange("y", "x")
    net.drop("y")
    assert net.route("x") == []


def test_auto_delete_exchanges_go_one_after_the_other(net: Net) -> None:
    """A chain longer than Python's stack, with a circle in it."""
    count = 1500
    for i in range(count):
        net.exchange(f"x{i}", "fanout", auto_delete=True)
    for i in range(count - 1):
        net.bind_exchange(f"x{i}", f"x{i + 1}")
    net.bind(f"x{count - 1}", "a")
    assert net.route("x0") == ["a"]
    net.drop_queue("a")
    assert net.state.topology.exchanges == {} and net.state.topology.binding_count == 0
    check_invariants(net.state)


def test_names_keys_and_arguments_have_limits(net: Net) -> None:
    net.exchange("x" * 255)
    for name in ("x" * 256, "\n", "\ud800", "é" * 128):
        with pytest.raises(InvalidInput):
            net.exchange(name)
    with pytest.raises(ExchangeExists):
        net.exchange("", "topic")
    net.exchange("x")
    net.bind("x", "a", "k" * 255)
    for key in ("k" * 256, "é" * 128, "\udc00"):
        with pytest.raises(InvalidInput, match="routing key"):
            net.bind("x", "a", key)
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    for arguments in ({"p": "v" * 20_000}, {"p": object()}, {"p": deep}, {"p": 1 << 64}):
        with pytest.raises(InvalidInput, match="arguments"):
            net.add(Binding("x", "queue", "a", "", arguments))
        with pytest.raises(InvalidInput, match="arguments"):
            net.exchange("y", arguments=arguments)
    with pytest.raises(InvalidInput, match="one of direct, topic"):
        net.exchange("y", "ring")
    with pytest.raises(InvalidInput, match="exchange name"):
        net.exchange("y", alternate_exchange="x" * 256)


def test_there_are_so_many_exchanges_and_bindings_at_most(net: Net) -> None:
    net.max_exchanges, net.max_bindings = 2, 2
    net.exchange("x")
    net.exchange("y")
    with pytest.raises(LimitExceeded, match="2 are allowed"):
        net.exchange("z")
    assert net.exchange("x") == []
    net.bind("x", "a", "1")
    net.bind("amq.direct", "a", "2")
    with pytest.raises(LimitExceeded, match="2 bindings already"):
        net.bind("x", "a", "3")
    assert net.bind("x", "a", "1") == []
    net.drop("x")
    net.exchange("z")
    net.bind("z", "a", "3")


def test_what_is_not_durable_goes_when_the_store_is_opened_again(net: Net) -> None:
    net.exchange("x", "fanout", durable=False)
    net.exchange("y", "fanout", durable=False, auto_delete=True)
    net.exchange("z", "fanout")
    net.put("t", durable=False)
    net.put("e", exclusive=True)
    net.bind_exchange("y", "x")
    net.bind("x", "a")
    for queue in ("a", "t", "e"):
        net.bind("z", queue)
    net.restart()
    assert net.route("z") == ["a", "e", "t"]
    net.run(topology.drop_transient(net.state, net.now_ms))
    assert net.route("z") == ["a"]
    assert list(net.state.topology.exchanges["/"]) == ["z"]
    assert net.run(topology.drop_transient(net.state, net.now_ms)) == []
    check_invariants(net.state)


def test_a_virtual_host_is_cleared_of_exchanges_and_bindings(net: Net) -> None:
    for vhost in ("/", "v"):
        net.queues("q", vhost=vhost)
        net.exchange("x", "fanout", vhost=vhost, auto_delete=True)
        net.exchange("y", "fanout", vhost=vhost)
        net.bind_exchange("x", "y", vhost=vhost)
        net.bind_exchange("amq.topic", "amq.fanout", "#", vhost=vhost)
        net.bind("amq.topic", "q", "#", vhost=vhost)
    before = len(net.state.topology.exchanges["/"])
    net.run(topology.clear_exchanges(net.state, "v", net.now_ms))
    assert "v" not in net.state.topology.exchanges
    assert len(net.state.topology.exchanges["/"]) == before and net.state.topology.binding_count == 3
    check_invariants(net.state)


def test_the_version_rises_when_a_route_may_have_changed(net: Net) -> None:
    steps: list[Callable[[], object]] = [
        lambda: net.exchange("x", "fanout"),
        lambda: net.bind("x", "a"),
        lambda: net.unbind("x", "a"),
        lambda: net.drop("x"),
        lambda: net.queues("new"),
        lambda: net.drop_queue("new"),
        lambda: net.put("a", lease_ms=7),  # plans for publishing into it rest on its settings
    ]
    for step in steps:
        before = net.state.topology.version
        step()
        assert net.state.topology.version > before
    before = net.state.topology.version
    net.publish(b"x", queue="a")
    assert net.state.topology.version == before


def test_remembered_routes_are_bounded(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "MAX_REMEMBERED", 30)
    net.exchange("x", "fanout")
    net.bind("x", "a")
    net.bind("x", "b")
    for i in range(100):
        assert net.route("x", f"key {i}") == ["a", "b"]
        assert net.route("x", "k" * 300) == ["a", "b"]
        assert 3 * len(net.state.topology._remembered) <= 30
    assert net.state.topology._remembered


def test_a_route_through_a_headers_exchange_is_not_remembered(net: Net) -> None:
    net.exchange("x", "fanout")
    net.exchange("h", "headers")
    net.bind_exchange("x", "h")
    net.bind("h", "a", p=1)
    assert net.route("x", "k", {"p": 1}) == ["a"]
    assert net.route("x", "k", {"p": 2}) == []


@pytest.mark.parametrize(
    ("attributes", "delay_ms"),
    [
        ({}, 0),
        ({"x-delay": 1500}, 1500),
        ({"x-delay": "1500"}, 1500),
        ({"x-delay": -1500}, 0),
        ({"x-delay": "soon"}, 0),
        ({"x-delay": "9" * 5000}, 0),
        ({"x-delay": True}, 0),
        ({"x-delay": 2.5}, 0),
        ({"x-delay": None}, 0),
    ],
)
def test_what_a_delayed_exchange_reads(attributes: dict[str, Any], delay_ms: int) -> None:
    assert message_delay_ms(attributes) == delay_ms


# Stored


def busy() -> Net:
    net = Net()
    net.queues("a", "b")
    net.queues("a", vhost="v")
    for vhost in ("/", "v"):
        net.exchange("x", "topic", vhost=vhost, alternate_exchange="h", auto_delete=True, arguments={"raw": b"\xff"})
        net.exchange("h", "headers", vhost=vhost, durable=False)
        net.exchange("d", "fanout", vhost=vhost, delayed=True)
        net.bind("x", "a", "k.#", vhost=vhost)
        net.bind_exchange("x", "h", "l.*", vhost=vhost)
        net.bind("h", "a", vhost=vhost, p=1, q=None, x__match="any")
        net.bind("amq.direct", "a", "k", vhost=vhost, raw=b"\x00\xff", when=2.5)
        net.bind_exchange("d", "d", vhost=vhost)
    net.bind("amq.direct", "b", "k")
    net.unbind("amq.direct", "b", "k")
    return net


def asked(net: Net) -> list[list[str]]:
    return [
        net.route(exchange, key, headers, vhost)
        for vhost in ("/", "v")
        for exchange in ("x", "h", "d", "amq.direct", "amq.topic")
        for key in ("k", "l.m", "other")
        for headers in ({}, {"p": 1}, {"q": "here"})
    ]


@pytest.mark.parametrize("how", ["replay", "snapshot"])
def test_all_of_it_survives(how: str) -> None:
    net = busy()
    before, routes = dump(net.state, net.now_ms), asked(net)
    assert any(routes)
    net.restart(how)
    after = dump(net.state, net.now_ms)
    assert {k: v for k, v in after.items() if k != "counters"} == {k: v for k, v in before.items() if k != "counters"}
    assert asked(net) == routes
    check_invariants(net.state)
    net.unbind("x", "a", "k.#")
    net.drop("h")
    with pytest.raises(ExchangeNotFound):
        net.route("x", "k")  # auto-delete
    check_invariants(net.state)


def test_a_snapshot_from_before_there_were_exchanges_loads() -> None:
    net = Net()
    net.queues("a")
    first, *rest = snapshot.chunks(snapshot.freeze(net.state))
    head = msgspec.msgpack.decode(first)
    assert head.pop("exchanges") == []
    state = snapshot.thaw([msgspec.msgpack.encode(head), *rest])
    assert state.topology.route("/", "", "a") == (1,)
    assert state.topology.route("/", "amq.fanout", "") == ()
    check_invariants(state)


def test_a_snapshot_is_of_its_moment() -> None:
    net = busy()
    expected = dump(net.state, net.now_ms)["exchanges"]
    source = snapshot.chunks(snapshot.freeze(net.state))
    net.bind("amq.direct", "b", "new")
    net.drop("d")
    assert dump(snapshot.thaw(list(source)), net.now_ms)["exchanges"] == expected


def test_a_caller_who_changes_arguments_afterwards_changes_nothing() -> None:
    net = Net()
    net.queues("a")
    arguments = {"p": 1}
    net.exchange("x", "headers", arguments=arguments)
    net.add(Binding("x", "queue", "a", "", arguments))
    arguments["p"] = 2
    assert net.route("x", "", {"p": 1}) == ["a"]
    assert net.state.topology.get("/", "x").settings.arguments == {"p": 1}
    check_invariants(replay(net.paper.read()))


def _topic(patterns: Iterable[str]) -> TopicIndex:
    index = TopicIndex()
    for number, pattern in enumerate(patterns, 1):
        index.add(pattern, {}, number)
    return index


def _numbers(index: TopicIndex, key: str, steps: Steps | None = None) -> set[Target]:
    return {target for part in index.match(key, None, steps or Steps()) for target in part}


def test_wildcards_in_any_order_cost_as_much_as_one_order_of_them() -> None:
    """All 65,536 patterns of sixteen `*` and `#` are 17 different ones, and match as they should."""
    patterns = [".".join(words) for words in product("*#", repeat=16)]
    index, steps = _topic(patterns), Steps(1_000)
    assert _numbers(index, ".".join("a" * 16), steps) == set(range(1, 65_537))
    of_three = {number for number, pattern in enumerate(patterns, 1) if pattern.count("*") <= 3}
    assert _numbers(index, "a.b.c") == of_three
    for number, pattern in enumerate(patterns, 1):
        index.remove(pattern, {}, number)
    assert _numbers(index, ".".join("a" * 16)) == set()


@pytest.mark.parametrize("pattern", ["#.*.a", "*.#.a", "#.#.*.#.a"])
def test_wildcards_match_the_same_in_any_order(pattern: str) -> None:
    index = _topic([pattern])
    for key, matches in (("a", False), ("x.a", True), ("x.y.z.a", True), ("x.a.y", False), ("", False), ("a.a", True)):
        assert bool(_numbers(index, key)) == matches, key


def test_route_that_costs_too_much_is_refused_and_others_are_not() -> None:
    index = _topic(".".join(words) for words in product(["#.a", "*.a", "a.*"], repeat=8))
    key = ".".join("a" * 100)
    with pytest.raises(RouteTooLong, match="more than 20000 steps"):
        _numbers(index, key)
    assert _numbers(index, "b.c.d") == set()


def test_message_with_many_shapes_of_headers_to_look_at_is_refused() -> None:
    index = HeadersIndex()
    for number in range(30_000):
        index.add("", {"x": 1, f"n{number}": 1}, number)
        index.add("", {f"n{number}": 1, "y": 1}, number)
    assert list(index.match("", {"z": 1}, Steps())) == [{}]
    spread = {f"n{number}": 1 for number in range(30_000)}
    with pytest.raises(RouteTooLong):
        list(index.match("", {**spread, "x": 1}, Steps()))
