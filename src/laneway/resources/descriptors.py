"""File descriptors: how many there are, and how connections and the files of the journal share them."""

from __future__ import annotations

import resource
from typing import NamedTuple

_OWN_COUNT = 64  # sockets that listen, the files being written, one for each thread that reads or writes aside …
_TURNED_AWAY_COUNT = 64  # … and connections beyond the limit, while they are told so
_READING_COUNT = (8, 128)  # files of the journal that stay open for reading: at least, at most
_READING_SHARE = 8  # of the limit
_FEWEST_CONNECTIONS = 8
_HANDSHAKES_SHARE = 4  # of what is left for connections, at most


class Descriptors(NamedTuple):
    for_connections: int
    for_reading: int  # by each journal
    for_handshakes: int  # of TLS, before they are connections


def share_out(limit: int, connection_count: int, handshake_count: int = 0, journal_count: int = 1) -> Descriptors:
    """`limit` descriptors, where so many connections and handshakes at once are wanted, beside so many journals."""
    for_reading = min(max(limit // _READING_SHARE // max(journal_count, 1), _READING_COUNT[0]), _READING_COUNT[1])
    left = limit - for_reading * journal_count - _OWN_COUNT - _TURNED_AWAY_COUNT
    for_handshakes = min(handshake_count, max(left // _HANDSHAKES_SHARE, _FEWEST_CONNECTIONS))
    for_connections = min(connection_count, max(left - for_handshakes, _FEWEST_CONNECTIONS))
    return Descriptors(for_connections, for_reading, for_handshakes)


def raise_limit(connection_count: int, journal_count: int = 1) -> None:
    """Let this process have as many descriptors as so many connections, and handshakes, need, as far as it may grant
    itself that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connection_count + _READING_COUNT[1] * journal_count + _OWN_COUNT + _TURNED_AWAY_COUNT
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def limit_in_force() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft
