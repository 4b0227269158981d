"""Direct reply-to: replies that go straight to the channel of whoever asked, through no queue and no journal.

A channel that consumes from amq.rabbitmq.reply-to gets a name of its own. It stands in for that word in the reply-to of
what the channel publishes; what others publish to that name over the default exchange is delivered to the channel.

    amq.rabbitmq.reply-to.N.TOKEN    N: the process that the caller is connected to; TOKEN: nobody can guess it
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from laneway.core.field_tables import encode_short_text
from laneway.errors import QueueNotFound
from laneway.frontends.amqp.delivering import deliver_frames
from laneway.frontends.amqp.errors import AmqpError, precondition_failed
from laneway.frontends.amqp.spec import Arguments

if TYPE_CHECKING:
    from laneway.frontends.amqp.channel import Channel
    from laneway.frontends.amqp.shared import AmqpShared

REPLY_TO = "amq.rabbitmq.reply-to"
PREFIX = REPLY_TO + "."

Heard = Callable[[bool], None]  # told whether a caller is there, and reads
Reply = tuple[bytes, bytes]  # properties and body


class ReplyPost(Protocol):
    """Takes replies to callers at other processes of the server, and brings theirs here."""

    process: int  # this one
    deliver: Callable[[str, Reply | None], bool]

    def send(self, process: int, name: str, what: Reply | None, heard: Heard | None = None) -> bool:
        """Whether it is on its way. Then `heard` is called later, with whether the caller takes it. Without a reply
        this only asks whether the caller is there."""


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
    post = ch.shared.reply_post
    ch.reply_name = f"{PREFIX}{post.process if post is not None else 0}.{ch.shared.random_name()}"
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


def find(ch: Channel, name: str, done: Callable[[Any], None]) -> None:
    """Answer whether somebody waits under this name."""

    def heard(is_there: bool) -> None:
        done(None if is_there else QueueNotFound(f"nobody waits for replies under {name!r}"))

    is_there = name == REPLY_TO or deliver(ch.shared, name, None, heard)
    if is_there is not None:
        heard(is_there)


def deliver(shared: AmqpShared, name: str, what: Reply | None, heard: Heard | None) -> bool | None:
    """Whether somebody waits under this name, and reads. None: that is known to another process, and `heard` later."""
    if name in shared.reply_channels:
        return deliver_here(shared, name, what)
    number, _, token = name.removeprefix(PREFIX).partition(".")
    if shared.reply_post is None or not token or not (number.isascii() and number.isdigit()):
        return False
    return None if shared.reply_post.send(int(number), name, what, heard) else False


def deliver_here(shared: AmqpShared, name: str, what: Reply | None) -> bool:
    asker = shared.reply_channels.get(name)
    if asker is None or asker.reply_tag is None:
        return False
    if what is None:
        return True
    if asker.connection.is_choked():
        return False
    raw, body = what
    asker.last_delivery += 1
    face = b"\0" + encode_short_text(name), raw
    tag, frame_bytes = encode_short_text(asker.reply_tag), asker.connection.frame_bytes
    for piece in deliver_frames(asker.number, tag, asker.last_delivery, face, body, False, frame_bytes):
        asker.outbox.send(piece)
    return True
