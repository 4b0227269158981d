"""Everything HTTP itself bounds, in one place: what one client may ask for, hold, or keep waiting."""

from __future__ import annotations

import msgspec

from laneway.errors import ConfigInvalid

#: The lowest value that still lets the server work; everything not named here must be at least 1.
_LOWEST = {
    "body_bytes": 1024,
    "head_bytes": 512,
    "target_bytes": 64,
    "header_count": 4,
    "wait_ms": 0,
    "peek_bytes": 1024,
}


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    body_bytes: int = 16 * 1024 * 1024  # of one request
    head_bytes: int = 64 * 1024  # request line and headers together
    target_bytes: int = 8 * 1024  # path and query
    header_count: int = 100
    connection_count: int = 10_000  # of a server that does not share an Intake with others
    receiving_bytes: int = 256 * 1024 * 1024  # … of requests that did not come whole yet, over all connections
    pipelined_count: int = 128  # requests of one connection that are worked on at once
    unsent_bytes: int = 1024 * 1024  # of one connection, before it is read from no longer
    idle_timeout_ms: int = 75_000  # without a request
    receive_timeout_ms: int = 30_000  # from the first byte of a head to its end, and again of a body
    send_timeout_ms: int = 60_000  # with unsent output and a client that takes none of it

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            lowest = _LOWEST.get(field, 1)
            if getattr(self, field) < lowest:
                raise ConfigInvalid(
                    f"the HTTP limit {field} must be at least {lowest}, not {getattr(self, field)}", field=field
                )
