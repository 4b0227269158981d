"""Everything the AMQP front end bounds, in one place: what one client may open, hold, or keep waiting."""

from __future__ import annotations

import msgspec

from laneway.errors import ConfigInvalid

_LOWEST = {"frame_bytes": 4096, "heartbeat_s": 0, "unsent_bytes": 1024}


class AmqpLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    connection_count: int = 10_000  # of a server that does not share an Intake with others
    receiving_bytes: int = 256 * 1024 * 1024  # … of large messages that did not come whole yet, over all connections
    channel_count: int = 2047  # of one connection
    consumer_count: int = 20_000  # of one connection
    frame_bytes: int = 131_072
    body_bytes: int = 256 * 1024  # of one message
    heartbeat_s: int = 60  # proposed to clients; 0: none
    handshake_ms: int = 10_000  # from the first byte to the open virtual host
    closing_ms: int = 5_000  # for a client to confirm that its connection ends
    linger_ms: int = 2_000  # … and then to close its socket
    unacked_count: int = (
        100_000  # unsettled deliveries, of one consumer without a prefetch limit or of one channel's gets
    )
    unconfirmed_bytes: int = 32 * 1024 * 1024  # of one connection's publishes on their way to the disk
    unfinished_bytes: int = 64 * 1024 * 1024  # of messages of one connection that have not come whole yet
    receive_timeout_ms: int = 30_000  # for each MiB of a large message, to come whole: room is kept for all of it
    transaction_bytes: int = 64 * 1024 * 1024  # of one connection's uncommitted publishes
    transaction_count: int = 100_000  # … and of its publishes and acknowledgements
    unsent_bytes: int = 4 * 1024 * 1024  # of one connection, before its consumers are paused
    unread_bytes: int = 16 * 1024 * 1024  # … and of answers on top of that, before nothing more is read
    send_timeout_ms: int = 60_000  # with unsent output and a client that takes none of it
    turn_ms: int = 50  # that one connection takes of a turn of the loop before others are served
    remembered_destinations: int = 20_000  # exchanges with routing keys that are looked up once

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            lowest = _LOWEST.get(field, 1)
            if getattr(self, field) < lowest:
                raise ConfigInvalid(
                    f"the AMQP limit {field} must be at least {lowest}, not {getattr(self, field)}", field=field
                )
