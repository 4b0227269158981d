"""Exchanges, bindings and the way from a published message to queues.

A route walks from exchange to exchange, each once, and collects queues. What an exchange's own bindings match is
looked up in its index (matching.py). An exchange that matches nothing passes the message to its alternate exchange.

The default exchange, named "", leads to the queue that has the routing key as its name. It and the amq.* exchanges are
in every virtual host without being written anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from laneway.core.matching import (
    DirectIndex,
    FanoutIndex,
    Headers,
    HeadersIndex,
    Index,
    Steps,
    Target,
    TopicIndex,
    check_headers_arguments,
    pack,
)
from laneway.core.settings import check_bounds
from laneway.errors import ExchangeNotFound, InvalidInput

MAX_KEY_BYTES = 255
#: Routes that are remembered together hold at most so many queue numbers and keys.
MAX_REMEMBERED = 200_000


class ExchangeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["direct", "topic", "fanout", "headers"] = "direct"
    durable: bool = True
    auto_delete: bool = False  # it goes when the last binding from it does
    internal: bool = False  # takes messages from other exchanges alone
    alternate_exchange: str | None = None  # takes what no binding matches; need not exist
    delayed: bool = False  # holds a message back for its attribute x-delay, in milliseconds
    arguments: dict[str, Any] = {}  # as they were declared; nothing here looks at them


class Binding(msgspec.Struct, frozen=True):
    source: str
    kind: Literal["queue", "exchange"]  # of the destination
    destination: str
    routing_key: str = ""
    arguments: dict[str, Any] = {}


class Hop(msgspec.Struct, frozen=True):
    """One step of a route: from an exchange to a queue or another exchange, and why."""

    exchange: str
    why: Literal["binding", "alternate", "default"]
    binding: Binding  # the implied one for the default exchange; for an alternate exchange it only names both ends


class Route(msgspec.Struct, frozen=True):
    """A queue that a message reaches, and the chain of hops that leads there."""

    queue: str
    hops: tuple[Hop, ...]


INDEXES: dict[str, Callable[[], Index]] = {
    "direct": DirectIndex,
    "topic": TopicIndex,
    "fanout": FanoutIndex,
    "headers": HeadersIndex,
}

_BLIND_TO_KEYS = ("fanout", "headers")

BUILT_IN: dict[str, ExchangeSettings] = {
    "": ExchangeSettings(type="direct"),
    "amq.direct": ExchangeSettings(type="direct"),
    "amq.fanout": ExchangeSettings(type="fanout"),
    "amq.headers": ExchangeSettings(type="headers"),
    "amq.match": ExchangeSettings(type="headers"),
    "amq.rabbitmq.trace": ExchangeSettings(type="topic", internal=True),
    "amq.topic": ExchangeSettings(type="topic"),
}

_Key = tuple[str, str, str, str, bytes]  # a binding's source, kind, destination, routing key and packed arguments


class Exchange:
    """An exchange and the bindings from it."""

    __slots__ = ("bindings", "created_at_ms", "ids", "index", "name", "settings", "vhost")

    def __init__(self, vhost: str, name: str, settings: ExchangeSettings, created_at_ms: int) -> None:
        self.vhost = vhost
        self.name = name
        self.settings = settings
        self.created_at_ms = created_at_ms
        self.index = INDEXES[settings.type]()
        self.bindings: dict[_Key, Binding] = {}
        self.ids: dict[_Key, int] = {}  # of queues, where that was said; else it is the queue of the name


_UNBOUND = {name: Exchange("", name, settings, 0) for name, settings in BUILT_IN.items()}


class NamedQueue(Protocol):
    """What routing knows of a queue."""

    number: int
    vhost: str
    name: str


class RoutingTable:
    """What routes where. `version` rises with every change of that, so that whoever remembers a route knows when to
    ask again."""

    def __init__(self, queues: Mapping[int, NamedQueue], by_name: Mapping[tuple[str, str], NamedQueue]) -> None:
        self._queues = queues
        self._by_name = by_name
        self.version = 0
        # Built-in exchanges are among them only while there are bindings from them.
        self.exchanges: dict[str, dict[str, Exchange]] = {}  # by virtual host, by name
        self.declared_count = 0
        self.binding_count = 0
        self._into: dict[tuple[str, str, str], dict[_Key, Binding]] = {}  # by virtual host, kind and destination
        self._remembered: dict[tuple[str, str, str], tuple[int, ...]] = {}
        self._remembered_size = 0

    # Asking

    def find(self, vhost: str, name: str) -> Exchange | None:
        there = self.exchanges.get(vhost)
        found = there.get(name) if there is not None else None
        return found if found is not None else _UNBOUND.get(name)

    def get(self, vhost: str, name: str) -> Exchange:
        found = self.find(vhost, name)
        if found is None:
            where = "" if vhost == "/" else f" in virtual host {vhost!r}"
            raise ExchangeNotFound(f"there is no exchange {name!r}{where}; declare it first", field="exchange")
        return found

    def has(self, vhost: str, binding: Binding) -> bool:
        exchange = self.find(vhost, binding.source)
        return exchange is not None and _key(binding) in exchange.bindings

    def target(self, vhost: str, binding: Binding) -> Target | None:
        """Where a binding leads to: the id of a queue, which may be gone, or the name of an exchange. None if it is
        not there."""
        exchange = self.find(vhost, binding.source)
        key = _key(binding)
        return self._target(exchange, key, binding) if exchange is not None and key in exchange.bindings else None

    def into(self, vhost: str, kind: str, name: str) -> list[Binding]:
        """The bindings that lead to a queue or an exchange."""
        return list(self._into.get((vhost, kind, name), {}).values())

    def arriving_count(self) -> int:
        """All bindings, counted where they lead to."""
        return sum(map(len, self._into.values()))

    def route(
        self,
        vhost: str,
        exchange: str,
        routing_key: str,
        headers: Headers | None = None,
        steps: Steps | None = None,
        *,
        more: Sequence[str] = (),
    ) -> tuple[int, ...]:
        """The numbers of the queues that a message reaches, each once. Hot: routes that no header has a say in are
        remembered until something changes. Several routes may be bounded by `steps` together. `more`: further routing
        keys of the message; each exchange on its way looks at all of them."""
        if not exchange and not more:
            queue = self._by_name.get((vhost, routing_key))
            return () if queue is None else (queue.number,)
        known = self._remembered.get((vhost, exchange, routing_key)) if not more else None
        if known is not None:
            return known
        queues: dict[int, None] = {}
        by_headers = False
        start = self.get(vhost, exchange)
        for found, targets, _ in self._walk(vhost, start, (routing_key, *more), headers, steps or Steps()):
            by_headers = by_headers or found.settings.type == "headers"
            for target in targets:
                if isinstance(target, int):
                    queues[target] = None
        route = tuple(queues)
        if not by_headers and not more:
            self._remember((vhost, exchange, routing_key), route)
        return route

    def asks_headers(self, vhost: str, exchange: str, routing_key: str) -> bool:
        """Whether the headers of a message have a say in where it goes."""
        if not exchange or (vhost, exchange, routing_key) in self._remembered:
            return False
        walk = self._walk(vhost, self.get(vhost, exchange), (routing_key,), None, Steps())
        return any(found.settings.type == "headers" for found, _, _ in walk)

    def _walk(
        self, vhost: str, start: Exchange, routing_keys: Sequence[str], headers: Headers | None, steps: Steps
    ) -> Iterator[tuple[Exchange, dict[Target, None], bool]]:
        """The exchanges a message comes through, each once, with what each leads to and whether as an alternate."""
        seen = {start.name}
        waiting = [start]
        for exchange in waiting:
            steps.take(1)
            targets: dict[Target, None] = {}
            is_alternate = False
            if exchange.name:
                for routing_key in routing_keys:
                    for part in exchange.index.match(routing_key, headers, steps):
                        targets.update(dict.fromkeys(part))
                    if exchange.settings.type in _BLIND_TO_KEYS:
                        break
                if exchange.ids:
                    targets = {t: None for t in targets if isinstance(t, str) or t in self._queues}
                alternate = exchange.settings.alternate_exchange
                if not targets and alternate:  # the default exchange is none, as in RabbitMQ
                    targets[alternate] = None
                    is_alternate = True
            else:
                queues = (self._by_name.get((vhost, routing_key)) for routing_key in routing_keys)
                targets = {queue.number: None for queue in queues if queue is not None}
            yield exchange, targets, is_alternate
            for target in targets:
                if isinstance(target, str) and target not in seen:
                    seen.add(target)
                    following = self.find(vhost, target)
                    if following is not None:
                        waiting.append(following)

    def _remember(self, asked: tuple[str, str, str], route: tuple[int, ...]) -> None:
        if len(asked[2]) > MAX_KEY_BYTES:
            return
        self._remembered_size += 1 + len(route)
        if self._remembered_size > MAX_REMEMBERED:
            self._remembered.clear()
            self._remembered_size = 1 + len(route)
        self._remembered[asked] = route

    def explain(self, vhost: str, exchange: str, routing_key: str, headers: Headers | None = None) -> list[Route]:
        """The queues a message would reach, once for every binding that matches, nearest first."""
        start = self.get(vhost, exchange)
        chains: dict[str, tuple[Hop, ...]] = {start.name: ()}
        routes: list[Route] = []
        steps = Steps()
        for found, targets, is_alternate in self._walk(vhost, start, (routing_key,), headers, steps):
            chain = chains[found.name]
            for target in targets:
                for hop in self._hops(vhost, found, target, is_alternate, routing_key, headers, steps):
                    if isinstance(target, int):
                        routes.append(Route(hop.binding.destination, (*chain, hop)))
                    else:
                        chains.setdefault(target, (*chain, hop))
        return routes

    def _hops(
        self,
        vhost: str,
        exchange: Exchange,
        target: Target,
        is_alternate: bool,
        routing_key: str,
        headers: Headers | None,
        steps: Steps,
    ) -> Iterator[Hop]:
        if is_alternate:
            yield Hop(exchange.name, "alternate", Binding(exchange.name, "exchange", str(target)))
        elif not exchange.name:
            yield Hop("", "default", Binding("", "queue", routing_key, routing_key))
        else:
            there = ("exchange", target) if isinstance(target, str) else ("queue", self._queues[target].name)
            for binding in self.into(vhost, *there):
                steps.take(2)  # it costs as much
                if binding.source == exchange.name and _matches(exchange.settings.type, binding, routing_key, headers):
                    yield Hop(exchange.name, "binding", binding)

    # Changing; only State.apply does

    def changed(self) -> None:
        self.version += 1
        self._remembered.clear()
        self._remembered_size = 0

    def put(self, vhost: str, name: str, settings: ExchangeSettings, at_ms: int) -> None:
        self.exchanges.setdefault(vhost, {})[name] = Exchange(vhost, name, settings, at_ms)
        self.declared_count += 1
        self.changed()

    def delete(self, vhost: str, name: str) -> None:
        """Remove an exchange, the bindings from and to it, and auto-delete exchanges that this leaves without any."""
        waiting = [name]
        for doomed in waiting:
            exchange = self.exchanges.get(vhost, {}).pop(doomed, None)
            if exchange is None:
                continue
            self.declared_count -= 1
            for key, binding in exchange.bindings.items():
                self._drop_into(vhost, key, binding)
            self.binding_count -= len(exchange.bindings)
            waiting += self._unbind_all(vhost, "exchange", doomed)
        if not self.exchanges.get(vhost, True):
            del self.exchanges[vhost]
        self.changed()

    def queue_deleted(self, queue: NamedQueue) -> None:
        """While its name still leads to its number."""
        for name in self._unbind_all(queue.vhost, "queue", queue.name, queue.number):
            self.delete(queue.vhost, name)
        self.changed()

    def queue_departed(self, queue: NamedQueue, there: int) -> None:
        """While its name still leads to its number: from now on it has another id."""
        for key, binding in self._into.get((queue.vhost, "queue", queue.name), {}).items():
            exchange = self.exchanges[queue.vhost][binding.source]
            if self._target(exchange, key, binding) == queue.number:
                exchange.index.remove(binding.routing_key, binding.arguments, queue.number)
                exchange.ids[key] = there
                exchange.index.add(binding.routing_key, binding.arguments, there)
        self.changed()

    def readdress(self, current: Callable[[int], int]) -> None:
        """Queues have other ids than bindings say: those that `current` gives for them."""
        for vhost, there in self.exchanges.items():
            for exchange in there.values():
                for key, queue in list(exchange.ids.items()):
                    if current(queue) != queue:
                        self.bind(vhost, exchange.bindings[key], current(queue))

    def bind(self, vhost: str, binding: Binding, queue: int | None = None) -> None:
        """`queue`: the id of the queue it leads to; None: the one of that name here."""
        exchange = self.find(vhost, binding.source)
        assert exchange is not None, f"a binding from {binding.source!r}, which is not there"
        if exchange is _UNBOUND.get(binding.source):
            exchange = Exchange(vhost, binding.source, BUILT_IN[binding.source], 0)
            self.exchanges.setdefault(vhost, {})[binding.source] = exchange
        key = _key(binding)
        if key in exchange.bindings:  # to a queue of this name that is gone
            exchange.index.remove(binding.routing_key, binding.arguments, self._target(exchange, key, binding))
            exchange.ids.pop(key, None)
            self.binding_count -= 1
        exchange.bindings[key] = binding
        if queue is not None:
            exchange.ids[key] = queue
        exchange.index.add(binding.routing_key, binding.arguments, self._target(exchange, key, binding))
        self._into.setdefault((vhost, binding.kind, binding.destination), {})[key] = binding
        self.binding_count += 1
        self.changed()

    def unbind(self, vhost: str, binding: Binding) -> None:
        key = _key(binding)
        exchange = self.exchanges[vhost][binding.source]
        self._drop_into(vhost, key, binding)
        if self._drop_from(exchange, key, binding):
            self.delete(vhost, exchange.name)
        self.changed()

    def _unbind_all(self, vhost: str, kind: str, name: str, queue: int | None = None) -> list[str]:
        """Drop the bindings that lead to something; the auto-delete exchanges that have none left. `queue`: only those
        to the queue with this id, which may have had a namesake elsewhere."""
        emptied = []
        there = self._into.pop((vhost, kind, name), {})
        for key, binding in list(there.items()):
            exchange = self.exchanges.get(vhost, {}).get(binding.source)
            if exchange is None:
                continue
            if queue is not None and self._target(exchange, key, binding) != queue:
                continue
            del there[key]
            if self._drop_from(exchange, key, binding):
                emptied.append(exchange.name)
        if there and queue is not None:
            self._into[vhost, kind, name] = there
        return emptied

    def _drop_from(self, exchange: Exchange, key: _Key, binding: Binding) -> bool:
        """Take a binding off its exchange; whether the exchange has to go."""
        exchange.index.remove(binding.routing_key, binding.arguments, self._target(exchange, key, binding))
        del exchange.bindings[key]
        exchange.ids.pop(key, None)
        self.binding_count -= 1
        if exchange.bindings:
            return False
        if exchange.name in BUILT_IN:
            del self.exchanges[exchange.vhost][exchange.name]
            if not self.exchanges[exchange.vhost]:
                del self.exchanges[exchange.vhost]
            return False
        return exchange.settings.auto_delete

    def _drop_into(self, vhost: str, key: _Key, binding: Binding) -> None:
        place = (vhost, binding.kind, binding.destination)
        there = self._into.get(place)
        if there is not None:
            there.pop(key, None)
            if not there:
                del self._into[place]

    def _target(self, exchange: Exchange, key: _Key, binding: Binding) -> Target:
        if binding.kind == "exchange":
            return binding.destination
        queue = exchange.ids.get(key) if exchange.ids else None
        return self._by_name[exchange.vhost, binding.destination].number if queue is None else queue


def _key(binding: Binding) -> _Key:
    b = binding
    return b.source, b.kind, b.destination, b.routing_key, pack(b.arguments) if b.arguments else b""


def _matches(kind: str, binding: Binding, routing_key: str, headers: Headers | None) -> bool:
    """Whether one binding matches: asked of an index that has nothing else."""
    index = INDEXES[kind]()
    index.add(binding.routing_key, binding.arguments, 0)
    return any(True for part in index.match(routing_key, headers, Steps()) for _ in part)


# What may be declared


def check_exchange_name(name: str, *, field: str = "exchange") -> None:
    """An exchange name is 1 to 255 bytes of UTF-8 without control characters."""
    if not name:
        raise InvalidInput("an exchange name has 1 to 255 bytes; the default exchange is always there", field=field)
    _check_text(name, "an exchange name", field)
    if any(ord(c) < 32 or ord(c) == 127 for c in name):
        raise InvalidInput(f"an exchange name has no control characters: {name!r}", field=field)


def check_routing_key(key: str) -> None:
    _check_text(key, "a routing key", "routing_key")


def _check_text(text: str, what: str, field: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_KEY_BYTES:
        raise InvalidInput(f"{what} has at most {MAX_KEY_BYTES} bytes, this one has {size}", field=field)
    if any(0xD800 <= ord(c) <= 0xDFFF for c in text):
        raise InvalidInput(f"{what} is valid Unicode, this one is not: {text!r}", field=field)


def check_exchange_settings(settings: ExchangeSettings) -> None:
    if settings.type not in INDEXES:
        raise InvalidInput(f"an exchange's type is one of {', '.join(INDEXES)}, not {settings.type!r}", field="type")
    if settings.alternate_exchange is not None:
        _check_text(settings.alternate_exchange, "an exchange name", "alternate_exchange")
    check_bounds(settings.arguments)


def check_binding(binding: Binding, source: Exchange) -> None:
    check_routing_key(binding.routing_key)
    check_bounds(binding.arguments)
    if source.settings.type == "headers":
        check_headers_arguments(binding.arguments)


def message_delay_ms(attributes: Mapping[str, Any]) -> int:
    """How long a delayed exchange holds a message back; one that does not say it in a number, not at all."""
    delay = attributes.get("x-delay", 0)
    if isinstance(delay, str) and delay.isdecimal() and len(delay) <= 20:
        delay = int(delay)
    return max(0, delay) if isinstance(delay, int) and not isinstance(delay, bool) else 0
