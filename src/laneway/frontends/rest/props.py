"""The props blocks of records, many at once: made of the columns of a request, and shown as members of JSON objects.
core/message.py owns their layout, and makes and reads single ones."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import msgspec

from laneway.core.message import JSON_TYPE, MAX_ATTRIBUTES, MAX_TEXT_BYTES, Properties, decode_props
from laneway.frontends.rest.answers import PropertiesAnswer
from laneway.frontends.rest.attributes import Attributes, attribute_to_wire

#: The texts of a block, in their order; the content type is the first.
TEXTS = Properties.__struct_fields__[:8]

_LENGTHS = struct.Struct("<8H")
_JSON = JSON_TYPE.encode()
_JSON_LENGTH = len(_JSON).to_bytes(2, "little")
_JSON_END = _LENGTHS.size + len(_JSON)
_BARE = _LENGTHS.pack(len(_JSON), *[0] * 7) + _JSON  # says no more than an empty block does
_EMPTY_MAP = b"\x80"
_ATTRIBUTES = b"\x81\xa1a"  # how a map begins that holds nothing else
_LONG_ARRAY = b"\xdd"
_MISPLACED_BINARY = b"\x81\xa6binary"  # a Binary, encoded as it is instead of as its bytes
_SHOWN_EXTRA = PropertiesAnswer.__struct_fields__
_LARGE_BYTES = 2 * MAX_ATTRIBUTES  # of a map that may hold more attributes than are allowed
_REMEMBERED_LAYOUTS = 4096

_pack = msgspec.msgpack.Encoder().encode
_encode_lines = msgspec.json.Encoder(enc_hook=str).encode_lines


def encode_blocks(
    count: int, texts: Mapping[str, Sequence[str | None]], attributes: Sequence[Attributes | None] | None
) -> list[bytes] | None:
    """Hot: the blocks of so many messages with JSON bodies, column by column. None if one of them breaks a rule or has
    attributes that are bytes: then they must be made one by one."""
    lengths: list[Iterable[int]] = [repeat(len(_JSON), count)]
    columns: list[Iterable[bytes]] = [repeat(_JSON, count)]
    try:
        for name in TEXTS[1:]:
            lengths.append(repeat(0, count))
            if name in texts:
                column = [text.encode() if text else b"" for text in texts[name]]
                lengths[-1] = sizes = list(map(len, column))
                if max(sizes) > MAX_TEXT_BYTES:
                    return None
                columns.append(column)
        if attributes is not None:
            packed = [_ATTRIBUTES + _pack(held) if held else b"" for held in attributes]
            if max(map(len, packed)) > _LARGE_BYTES or _MISPLACED_BINARY in b"".join(packed):
                return None
            columns.append(packed)
    except (UnicodeEncodeError, OverflowError):
        return None
    blocks = map(b"".join, zip(map(_LENGTHS.pack, *lengths), *columns, strict=True))
    return [b"" if block == _BARE else block for block in blocks]


class _Stored(msgspec.Struct, gc=False):
    """The map at the end of a block, if its attributes are values that JSON has too."""

    a: dict[str, str | int | float | bool | None] = {}
    x: dict[str, Any] = {}


_decode_stored = msgspec.msgpack.Decoder(list[_Stored]).decode


class _Layout(NamedTuple):
    """Where everything is in blocks with the same lengths."""

    texts: tuple[tuple[str, slice], ...]  # those that are not empty, without the content type
    end: int  # of the texts


class BlockReader:
    """Shows blocks as JSON. It remembers layouts: the messages of one publisher mostly share theirs."""

    def __init__(self) -> None:
        self._layouts: dict[bytes, _Layout] = {}  # by the lengths and the content type

    def describe(self, blocks: Collection[bytes]) -> tuple[dict[bytes, bytes], dict[bytes, str]]:
        """Hot: (the members that show what each block says, the content types that are not JSON's), both by block."""
        types: dict[bytes, str] = {}
        try:
            shown = self._shown(blocks, types)
        except msgspec.ValidationError:  # some attributes are bytes, or lists and maps of another protocol
            shown = [_show_one(block, types) for block in blocks]
        # JSON escapes line breaks inside strings, so the end of each object is found by its line break.
        return dict(zip(blocks, _encode_lines(shown)[1:-2].split(b"}\n{"), strict=True)), types

    def _shown(self, blocks: Collection[bytes], types: dict[bytes, str]) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = []
        described: list[dict[str, Any]] = []  # those of them that have a map, and the maps
        maps: list[bytes] = []
        for block in blocks:
            layout = self._layouts.get(block[:_JSON_END]) or self._layout(block)
            if layout is None:
                shown.append(_show_one(block, types))
                continue
            texts: dict[str, Any] = {}
            for name, at in layout.texts:
                texts[name] = block[at].decode()
            shown.append(texts)
            described.append(texts)
            maps.append(block[layout.end :] or _EMPTY_MAP)
        whole = b"%b%b%b" % (_LONG_ARRAY, len(maps).to_bytes(4, "big"), b"".join(maps))
        for texts, stored in zip(described, _decode_stored(whole), strict=True):
            texts["attributes"] = stored.a
            if stored.x:
                _show_extra(texts, stored.x)
        return shown

    def _layout(self, block: bytes) -> _Layout | None:
        """None if the block is empty, or not of a message with a JSON body."""
        beginning = block[:_JSON_END]
        if not beginning.startswith(_JSON_LENGTH) or not beginning.endswith(_JSON):
            return None
        texts: list[tuple[str, slice]] = []
        end = _JSON_END
        for name, length in zip(TEXTS[1:], _LENGTHS.unpack_from(block)[1:], strict=True):
            if length:
                texts.append((name, slice(end, end + length)))
            end += length
        if len(self._layouts) >= _REMEMBERED_LAYOUTS:
            self._layouts.clear()
        layout = self._layouts[beginning] = _Layout(tuple(texts), end)
        return layout


def show(p: Properties) -> dict[str, Any]:
    """What a message says beside its body, as its JSON object shows it."""
    shown: dict[str, Any] = {name: text for name in TEXTS[1:] if (text := getattr(p, name))}
    if p.content_type != JSON_TYPE:
        shown["content_type"] = p.content_type
    shown["attributes"] = attribute_to_wire(p.attributes)
    _show_extra(shown, p.extra)
    return shown


def _show_one(block: bytes, types: dict[bytes, str]) -> dict[str, Any]:
    shown = show(decode_props(block))
    if "content_type" in shown:
        types[block] = shown["content_type"]
    return shown


def _show_extra(shown: dict[str, Any], extra: Mapping[str, Any]) -> None:
    """Add the properties that the wire has names for; others belong to one protocol alone."""
    properties = {name: extra[name] for name in _SHOWN_EXTRA if name in extra}
    if properties:
        shown["properties"] = attribute_to_wire(properties)
