"""Routing as plainly as it can be said: a list of bindings, all of which are looked at every time."""

from __future__ import annotations

from typing import Any

from laneway.core.exchanges import BUILT_IN, Binding, ExchangeSettings
from laneway.errors import ExchangeExists, ExchangeInUse, ExchangeNotFound, InvalidInput, LanewayError, QueueNotFound


class Model:
    def __init__(self) -> None:
        self.exchanges: dict[str, ExchangeSettings] = dict(BUILT_IN)
        self.queues: set[str] = set()
        self.bindings: list[Binding] = []

    # What is asked of it; the error that is to be expected, or None

    def declare(self, name: str, settings: ExchangeSettings) -> type[LanewayError] | None:
        if name in self.exchanges:
            return None if self.exchanges[name] == settings else ExchangeExists
        self.exchanges[name] = settings
        return None

    def delete(self, name: str, if_unused: bool) -> type[LanewayError] | None:
        if name not in self.exchanges:
            return ExchangeNotFound
        if name in BUILT_IN:
            return InvalidInput
        if if_unused and any(b.source == name for b in self.bindings):
            return ExchangeInUse
        del self.exchanges[name]
        self._forget([b for b in self.bindings if name == b.source or ("exchange", name) == (b.kind, b.destination)])
        return None

    def bind(self, binding: Binding) -> type[LanewayError] | None:
        if binding.source not in self.exchanges:
            return ExchangeNotFound
        if binding.kind == "queue" and binding.destination not in self.queues:
            return QueueNotFound
        if binding.kind == "exchange" and binding.destination not in self.exchanges:
            return ExchangeNotFound
        if not any(same(binding, b) for b in self.bindings):
            self.bindings.append(binding)
        return None

    def unbind(self, binding: Binding) -> None:
        self._forget([b for b in self.bindings if same(binding, b)])

    def delete_queue(self, name: str) -> type[LanewayError] | None:
        if name not in self.queues:
            return QueueNotFound
        self.queues.discard(name)
        self._forget([b for b in self.bindings if ("queue", name) == (b.kind, b.destination)])
        return None

    def _forget(self, gone: list[Binding]) -> None:
        self.bindings = [b for b in self.bindings if not any(b is g for g in gone)]  # 1 and True are equal
        for source in {b.source for b in gone}:
            found = self.exchanges.get(source)  # one that goes may take others with it
            if found is not None and found.auto_delete and not any(b.source == source for b in self.bindings):
                self.delete(source, if_unused=False)

    # Where a message goes

    def route(self, exchange: str, key: str, headers: dict[str, Any]) -> set[str]:
        reached: set[str] = set()
        self._visit(exchange, key, headers, reached, set())
        return reached

    def _visit(self, exchange: str, key: str, headers: dict[str, Any], reached: set[str], seen: set[str]) -> None:
        if exchange in seen or exchange not in self.exchanges:
            return
        seen.add(exchange)
        if exchange == "":
            reached |= {key} & self.queues
            return
        settings = self.exchanges[exchange]
        found = [b for b in self.bindings if b.source == exchange and matches(settings.type, b, key, headers)]
        for binding in found:
            if binding.kind == "queue":
                reached.add(binding.destination)
            else:
                self._visit(binding.destination, key, headers, reached, seen)
        if not found and settings.alternate_exchange:
            self._visit(settings.alternate_exchange, key, headers, reached, seen)


def same(one: Binding, other: Binding) -> bool:
    return one == other and {k: type(v) for k, v in one.arguments.items()} == {
        k: type(v) for k, v in other.arguments.items()
    }


def matches(kind: str, binding: Binding, key: str, headers: dict[str, Any]) -> bool:
    if kind == "fanout":
        return True
    if kind == "direct":
        return binding.routing_key == key
    if kind == "topic":
        return topic_matches(words(binding.routing_key), words(key))
    how = binding.arguments.get("x-match", "all")
    wanted = {
        name: value
        for name, value in binding.arguments.items()
        if name != "x-match" and ("with-x" in how or name[:2] != "x-")
    }
    hits = [
        name in headers and (value is None or plain(value) == plain(headers[name])) for name, value in wanted.items()
    ]
    return any(hits) if how.startswith("any") else all(hits)


def plain(value: Any) -> tuple[str, Any]:
    """Numbers are alike whatever their type, so are texts and bytes; true is no number."""
    if isinstance(value, bool):
        return "bool", value
    if isinstance(value, int | float):
        return "number", value
    if isinstance(value, str):
        return "text", value.encode()
    return ("text", value) if isinstance(value, bytes) else (type(value).__name__, value)


def words(key: str) -> list[str]:
    return key.split(".") if key != "" else []


def topic_matches(pattern: list[str], key: list[str]) -> bool:
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(topic_matches(pattern[1:], key[i:]) for i in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and topic_matches(pattern[1:], key[1:])
