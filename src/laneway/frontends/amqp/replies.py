"""Direct reply-to: replies that go straight to the channel of whoever asked, through no queue and no journal.

A channel that consumes from amq.rabbitmq.reply-to gets a name of its own. It stands in for that word in the reply-to of
what the channel publishes; what others publish to that name over the default exchange is delivered to the channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.core.field_tables import encode_short_text
from laneway.frontends.amqp.delivering import deliver_frames
from laneway.frontends.amqp.errors import AmqpError, not_found, precondition_failed
from laneway.frontends.amqp.spec import Arguments

if TYPE_CHECKING:
    from laneway.frontends.amqp.channel import Channel

REPLY_TO = "amq.rabbitmq.reply-to"
PREFIX = REPLY_TO + "."


def is_reply_name(name: str) -> bool:
    return name == REPLY_TO or name.startswith(PREFIX)


def consume(ch: Channel, a: Arguments) -> None:
    if not a.no_ack:
        raise precondition_failed("reply consumer cannot acknowledge")
    if ch.reply_tag is not None:
        raise precondition_failed("reply consumer already set")
    tag = a.consumer_tag or f"amq.ctag-{ch.shared.random_name()}"
    if tag in ch.consumers:
        raise AmqpError(530, f"attempt to reuse consumer tag '{tag}'")
    ch.reply_tag = tag
    ch.reply_name = PREFIX + ch.shared.random_name()
    ch.shared.reply_channels[ch.reply_name] = ch
    if not a.nowait:
        ch.send("basic.consume-ok", tag)


def forget(ch: Channel) -> None:
    """The channel wants no more replies."""
    if ch.reply_tag is not None:
        ch.reply_tag = None
        del ch.shared.reply_channels[ch.reply_name]


def own_name(ch: Channel) -> str:
    """What stands in for the word in what this channel publishes."""
    if ch.reply_tag is None:
        raise precondition_failed("fast reply consumer does not exist")
    return ch.reply_name


def check_exists(ch: Channel, name: str) -> None:
    if name != REPLY_TO and name not in ch.shared.reply_channels:
        raise not_found("queue", name, ch.vhost)


def deliver(ch: Channel, key: str, raw: bytes, body: bytes) -> bool:
    """Whether somebody waits under this name, and reads."""
    asker = ch.shared.reply_channels.get(key)
    if asker is None or asker.reply_tag is None or asker.connection.is_choked():
        return False
    asker.last_delivery += 1
    face = b"\0" + encode_short_text(key), raw
    tag, frame_bytes = encode_short_text(asker.reply_tag), asker.connection.frame_bytes
    for piece in deliver_frames(asker.number, tag, asker.last_delivery, face, body, False, frame_bytes):
        asker.outbox.send(piece)
    return True
