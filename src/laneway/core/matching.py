"""Which destinations an exchange's bindings lead to: one index per exchange type, so that a route costs what it
matches and never a scan. They know nothing of exchanges, queues or where a destination leads: exchanges.py does.

    direct    routing key ─▶ leaf
    fanout    one leaf
    topic     a trie of words; `*` is one word, `#` any number of words, none included
                  orders.*.eu   ──  root ─orders─▶ ○ ─*─▶ ○ ─eu─▶ leaf
                  orders.#      ──  root ─orders─▶ ○ ─#─▶ leaf, which stays for every further word
    headers   any of some: name, value ─▶ leaf        all of some: names ─▶ values ─▶ leaf

A leaf is {target: how many bindings lead there}.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from laneway.errors import InvalidInput, RouteTooLong

Target = int | str  # a queue's number, or the name of an exchange
Leaf = dict[Target, int]
Headers = Mapping[str, Any]

#: Of one message: places in tries, shapes of headers and exchanges that are looked at. Some ten milliseconds.
MAX_STEPS = 20_000

X_MATCHES = ("all", "any", "all-with-x", "any-with-x")

_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_NO_HEADERS: Headers = {}


def pack(value: Any) -> bytes:
    """A value as bytes that are equal when type and value are: 1, 1.0, True and "1" are four different ones."""
    return _encode(value)


def pack_header(value: Any) -> bytes:
    """A header's value, where 1 and 1.0 are alike, and so are text and its bytes, as RabbitMQ has it; what is nested
    must be the same in type and value."""
    if isinstance(value, str):
        value = value.encode()
    elif isinstance(value, float) and value.is_integer() and abs(value) < 1 << 63:
        value = int(value)
    return _encode(value)


def _count_up(leaf: Leaf, target: Target) -> None:
    leaf[target] = leaf.get(target, 0) + 1


def _count_down(leaf: Leaf, target: Target) -> None:
    left = leaf[target] - 1
    if left:
        leaf[target] = left
    else:
        del leaf[target]


class Index(Protocol):
    def add(self, key: str, arguments: Headers, target: Target) -> None: ...

    def remove(self, key: str, arguments: Headers, target: Target) -> None:
        """Undo one add of just these values."""

    def match(self, key: str, headers: Headers | None, steps: Steps) -> Iterable[Iterable[Target]]:
        """The targets of all bindings that match, in parts; one may come more than once."""


class Steps:
    """How much one message may cost on its way through bindings and exchanges."""

    __slots__ = ("left",)

    def __init__(self, left: int = MAX_STEPS) -> None:
        self.left = left

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise RouteTooLong(
                f"routing this message takes more than {MAX_STEPS} steps: too many bindings with * or # or headers, "
                "or exchanges bound to exchanges, could lead somewhere; use fewer of them, or several exchanges",
                field="routing_key",
            )


class DirectIndex:
    def __init__(self) -> None:
        self._leaves: dict[str, Leaf] = {}

    def add(self, key: str, arguments: Headers, target: Target) -> None:
        _count_up(self._leaves.setdefault(key, {}), target)

    def remove(self, key: str, arguments: Headers, target: Target) -> None:
        leaf = self._leaves[key]
        _count_down(leaf, target)
        if not leaf:
            del self._leaves[key]

    def match(self, key: str, headers: Headers | None, steps: Steps) -> Iterable[Iterable[Target]]:
        leaf = self._leaves.get(key)
        return () if leaf is None else (leaf,)


class FanoutIndex:
    def __init__(self) -> None:
        self._leaf: Leaf = {}

    def add(self, key: str, arguments: Headers, target: Target) -> None:
        _count_up(self._leaf, target)

    def remove(self, key: str, arguments: Headers, target: Target) -> None:
        _count_down(self._leaf, target)

    def match(self, key: str, headers: Headers | None, steps: Steps) -> Iterable[Iterable[Target]]:
        return (self._leaf,)


class _Node:
    __slots__ = ("any_word", "any_words", "leaf", "stays", "words")

    def __init__(self, stays: bool = False) -> None:
        self.words: dict[str, _Node] = {}
        self.any_word: _Node | None = None  # *
        self.any_words: _Node | None = None  # #
        self.stays = stays  # it is a `#` itself: one more word changes nothing
        self.leaf: Leaf = {}

    @property
    def is_bare(self) -> bool:
        return not (self.leaf or self.words or self.any_word or self.any_words)


def split_words(key: str) -> list[str]:
    """The words of a routing key; an empty one has none."""
    return key.split(".") if key else []


def split_pattern(key: str) -> list[str]:
    """The words of a pattern. Neighbouring wildcards come as so many `*`, then one `#` if there was any: all orders of
    them, and any number of `#`, match the same keys, and shall cost no more than one of them."""
    words = split_words(key)
    if "#" not in words:
        return words
    ordered: list[str] = []
    any_words = False
    for word in words:
        if word == "#":
            any_words = True
            continue
        if any_words and word != "*":
            ordered.append("#")
            any_words = False
        ordered.append(word)
    return [*ordered, "#"] if any_words else ordered


class TopicIndex:
    """Follows all the places in the trie where the words so far can lead, each once, so that patterns with many `#`
    cost no more than the nodes they have; and no more of them than one message may cost."""

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, key: str, arguments: Headers, target: Target) -> None:
        node = self._root
        for word in split_pattern(key):
            if word == "#":
                if node.any_words is None:
                    node.any_words = _Node(stays=True)
                node = node.any_words
            elif word == "*":
                if node.any_word is None:
                    node.any_word = _Node()
                node = node.any_word
            else:
                following = node.words.get(word)
                if following is None:
                    following = node.words[word] = _Node()
                node = following
        _count_up(node.leaf, target)

    def remove(self, key: str, arguments: Headers, target: Target) -> None:
        words = split_pattern(key)
        path = [self._root]
        for word in words:
            node = path[-1]
            following = node.any_words if word == "#" else node.any_word if word == "*" else node.words[word]
            assert following is not None
            path.append(following)
        _count_down(path[-1].leaf, target)
        while words and path[-1].is_bare:
            path.pop()
            word, node = words.pop(), path[-1]
            if word == "#":
                node.any_words = None
            elif word == "*":
                node.any_word = None
            else:
                del node.words[word]

    def match(self, key: str, headers: Headers | None, steps: Steps) -> Iterable[Iterable[Target]]:
        places = _with_no_words([self._root])
        for word in split_words(key):
            following: list[_Node] = []
            steps.take(len(places))
            for node in places:
                if node.stays:
                    following.append(node)
                found = node.words.get(word)
                if found is not None:
                    following.append(found)
                if node.any_word is not None:
                    following.append(node.any_word)
            if not following:
                return ()
            places = _with_no_words(following)
        return [node.leaf for node in places if node.leaf]


def _with_no_words(nodes: list[_Node]) -> Collection[_Node]:
    """These nodes and all that is reached from them without a word, that is through `#`; each once."""
    places = dict.fromkeys(nodes)
    for node in nodes:
        following = node.any_words
        while following is not None and following not in places:
            places[following] = None
            following = following.any_words
    return places


# Headers. A binding that wants any of some headers stands under each of them. One that wants all of them is found by
# its shape, which is the names it wants, then by the values: however many bindings have a shape, they cost one look.
# A shape stands under one of its names, the one that fewest others stand under: a message without it cannot match.

_Wanted = tuple[tuple[str, bytes | None], ...]  # names, and packed values; None: its presence is enough
_Shape = tuple[tuple[str, bool], ...]  # names, and whether a value is wanted
_Values = tuple[bytes | None, ...]


def check_headers_arguments(arguments: Headers) -> None:
    wanted = arguments.get("x-match", "all")
    if wanted not in X_MATCHES:
        raise InvalidInput(f"x-match is one of {', '.join(X_MATCHES)}, not {wanted!r}", field="arguments")


def _wanted(arguments: Headers) -> tuple[_Wanted, bool]:
    """What a binding's arguments ask for, and whether any of it will do."""
    how = arguments.get("x-match", "all")
    with_x = how.endswith("-with-x")
    wanted = tuple(
        (name, None if value is None else pack_header(value))
        for name, value in sorted(arguments.items())
        if name != "x-match" and (with_x or not name.startswith("x-"))
    )
    return wanted, how.startswith("any")


def _shape(wanted: _Wanted) -> tuple[_Shape, _Values]:
    return tuple((name, value is not None) for name, value in wanted), tuple(value for _, value in wanted)


_NO_SHAPES: dict[_Shape, dict[_Values, Leaf]] = {}


class HeadersIndex:
    def __init__(self) -> None:
        self._any: dict[str, dict[bytes | None, Leaf]] = {}  # by name and value
        self._always: Leaf = {}  # all of nothing
        self._all: dict[str, dict[_Shape, dict[_Values, Leaf]]] = {}  # by the name that a shape stands under
        self._stands_under: dict[_Shape, str] = {}

    def add(self, key: str, arguments: Headers, target: Target) -> None:
        wanted, any_will_do = _wanted(arguments)
        if any_will_do:
            for name, value in wanted:
                _count_up(self._any.setdefault(name, {}).setdefault(value, {}), target)
        elif not wanted:
            _count_up(self._always, target)
        else:
            shape, values = _shape(wanted)
            under = self._stands_under.get(shape)
            if under is None:
                under = min((name for name, _ in wanted), key=lambda name: len(self._all.get(name, ())))
                self._stands_under[shape] = under
            _count_up(self._all.setdefault(under, {}).setdefault(shape, {}).setdefault(values, {}), target)

    def remove(self, key: str, arguments: Headers, target: Target) -> None:
        wanted, any_will_do = _wanted(arguments)
        if any_will_do:
            for name, value in wanted:
                _count_down(self._any[name][value], target)
                _prune(self._any[name], value)
                _prune(self._any, name)
        elif not wanted:
            _count_down(self._always, target)
        else:
            shape, values = _shape(wanted)
            under = self._stands_under[shape]
            shapes = self._all[under]
            _count_down(shapes[shape][values], target)
            _prune(shapes[shape], values)
            if not shapes[shape]:
                del self._stands_under[shape]
            _prune(shapes, shape)
            _prune(self._all, under)

    def match(self, key: str, headers: Headers | None, steps: Steps) -> Iterable[Iterable[Target]]:
        given = headers or _NO_HEADERS
        found: list[Iterable[Target]] = [self._always]
        packed: dict[str, bytes | None] = {}
        for name in given:
            shapes = self._all.get(name, _NO_SHAPES)
            steps.take(1 + len(shapes))
            leaves = self._any.get(name)
            if leaves is not None:
                found.append(leaves.get(None, ()))
                value = _packed(name, given, packed)
                if value is not None:
                    found.append(leaves.get(value, ()))
            for shape, by_values in shapes.items():
                values = tuple(_packed(n, given, packed) if v else None for n, v in shape if n in given)
                if len(values) == len(shape):
                    found.append(by_values.get(values, ()))
        return found


def _prune(table: dict[Any, Any], key: object) -> None:
    if not table[key]:
        del table[key]


def _packed(name: str, given: Headers, known: dict[str, bytes | None]) -> bytes | None:
    """A message's header packed, once for all bindings that ask for it; None if it is like nothing that is stored."""
    if name not in known:
        try:
            known[name] = pack_header(given[name])
        except (OverflowError, RecursionError, TypeError, ValueError):
            known[name] = None
    return known[name]
