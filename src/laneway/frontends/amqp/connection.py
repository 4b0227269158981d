"""One AMQP connection: bytes in, bytes out, its channels, its heartbeat, its end.

    data_received ─▶ incoming (frames) ─▶ on_method / on_publish ─▶ handshake, or channel ─▶ broker
    transport.writelines ◀─ _flush, once a turn of the loop ◀─ write ◀──────────┘

Everything that can go wrong arrives here as an AmqpError and ends either its channel or the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

from laneway.access import Account, Login, Peer
from laneway.broker.interface import AMQP, Delivered, EndSession, Flow, Push, SettleHeld
from laneway.broker.values import Deliveries
from laneway.core.field_tables import Malformed
from laneway.errors import LanewayError
from laneway.frontends.amqp import consuming, publishing
from laneway.frontends.amqp.channel import Channel
from laneway.frontends.amqp.consuming import Consumer
from laneway.frontends.amqp.errors import NOT_NOW, AmqpError, amqp_error
from laneway.frontends.amqp.handshake import Handshake, common_name
from laneway.frontends.amqp.incoming import Incoming
from laneway.frontends.amqp.listing import ListedAmqp
from laneway.frontends.amqp.outbox import Data, Outbox
from laneway.frontends.amqp.shared import AmqpShared
from laneway.frontends.amqp.spec import (
    BY_NAME,
    HEADER_OF_0_9,
    HEARTBEAT_FRAME,
    METHODS,
    PROTOCOL_HEADER,
    Arguments,
    Method,
    encode,
)
from laneway.frontends.amqp.transactions import Uncommitted
from laneway.frontends.doors.directory import tls_version
from laneway.resources.intake import Waits

log = logging.getLogger("laneway.amqp")

_CHANNEL_OPEN = BY_NAME["channel.open"].number
_CHANNEL_CLOSE = BY_NAME["channel.close"].number
_CHANNEL_CLOSE_OK = BY_NAME["channel.close-ok"].number
_CLOSE = BY_NAME["connection.close"].number
_CLOSE_OK = BY_NAME["connection.close-ok"].number
_UPDATE_SECRET = BY_NAME["connection.update-secret"].number
_PUBLISH = BY_NAME["basic.publish"].number
_ACK = BY_NAME["basic.ack"].number
_CONSUME = BY_NAME["basic.consume"].number

_FIRST_FRAME_BYTES = 8192  # as RabbitMQ: of a frame of somebody who has not logged in


class AmqpConnection(asyncio.Protocol):
    def __init__(self, shared: AmqpShared, peer: Peer | None = None) -> None:
        self.shared = shared
        self.is_gone = False
        self._announced = peer  # by a proxy that passes bytes through
        self.peer: Peer
        self.account: Account | None = None
        self.login: Login | None = None  # how it proved to be that account
        self.vhost = ""  # until it is opened
        self._opened_s = 0.0
        self.client_capabilities: dict[str, Any] = {}
        self.client_properties: dict[str, str | int | bool] = {}  # as they are shown to people
        self._listed_as = 0  # in the directory of connections
        self.channel_max = shared.limits.channel_count
        self.heartbeat_s = 0
        self.frame_bytes = shared.limits.frame_bytes
        self.channels: dict[int, Channel] = {}
        self._leaving: dict[int, Outbox] = {}  # what closed channels still have to say, by their number
        self.unconfirmed_bytes = 0  # of publishes on their way to the disk
        self.uncommitted = Uncommitted()
        self.session = shared.broker.open_session(self._on_push)
        self.consumers: dict[int, Consumer] = {}  # by number, of all channels
        self._last_number = 0  # given to a consumer or to a limit that several share
        self.is_writing_paused = False
        self._transport: asyncio.Transport
        unfinished_bytes = max(shared.limits.unfinished_bytes, shared.limits.body_bytes)
        first_bytes = min(_FIRST_FRAME_BYTES, shared.limits.frame_bytes)
        limits = shared.limits
        self._incoming = Incoming(self, first_bytes, unfinished_bytes, limits.body_bytes, limits.turn_ms)
        self._waits_for_room: Waits | None = None  # for a message that is too large for the moment
        self._handshake: Handshake | None = None  # None before the protocol header
        self._beginning = b""
        self._is_closing = False  # connection.close was sent
        self._is_lingering = False  # … and answered; only the socket is still open
        self._holds = 0  # reasons to read nothing more at the moment
        self.method = 0  # the one being carried out, for errors
        self._out: list[Data] = []
        self._is_flush_planned = False
        self._is_reading = False
        self._blocked: list[Callable[[], None]] = []  # what waits for the disk
        # In sweeps of the server, which counts time for all connections
        self._quiet_in = self._quiet_out = self._age = self._stuck = 0
        self._unsent = 0  # bytes at the last sweep
        self._unsent_most = 0  # while writing is paused: more, and nothing more is read
        self._is_choking = False  # … which is so now

    # --- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        self.peer = self._announced or self.shared.proxies.peer(transport.get_extra_info("peername"))
        transport.set_write_buffer_limits(high=self.shared.limits.unsent_bytes)
        self.shared.on_connection()
        if self.shared.is_stopping or not self.shared.intake.admit():
            count = self.shared.intake.connection_count
            text = "AMQP connection from %s turned away: there are %d already"
            self._tell(logging.WARNING, "connections turned away", text, self.peer, count)
            transport.abort()
        else:
            self.shared.connections.add(self)
            self._opened_s = self.shared.now_s()
            entry = ListedAmqp(self, tls_version(transport))
            self._listed_as = self.shared.directory.enter(entry, self.session)

    def _tell(self, level: int, kind: str, text: str, *values: object) -> None:
        """In the log, unless there are too many of the kind from there."""
        self.shared.floods.say(log, level, kind, self.peer.address, text, *values)

    def doing(self) -> str:
        """In short, for a log line."""
        method = METHODS.get(self.method)
        return f"AMQP {method.name if method is not None else ''} of {self._who()!r} from {self.peer}"

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_gone = True
        self._end_channels()
        self._incoming.forget_all()
        self._out.clear()
        self._blocked.clear()
        if self in self.shared.connections:
            self.shared.connections.remove(self)
            self.shared.intake.leave()
            lasted_s = self.shared.now_s() - self._opened_s
            if self.vhost:
                text = "AMQP connection from %s closed: account %r, %.0f s"
                self._tell(logging.INFO, "AMQP connections", text, self.peer, self._who(), lasted_s)
            else:
                text = "AMQP connection from %s closed before it was opened, %.0f s"
                self._tell(logging.INFO, "AMQP connections that were not opened", text, self.peer, lasted_s)
            self.shared.directory.leave(self._listed_as, self.session)
        if not self.shared.connections:
            self.shared.on_empty()

    def data_received(self, data: bytes) -> None:
        self._quiet_in = 0
        if self._handshake is None:
            self._begin(data)
        else:
            self._read(data)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """Its consumers wait. Reading goes on: a client that writes before it reads again would wait for ever."""
        self.is_writing_paused = True
        self._stuck = 0
        self._unsent_most = self._transport.get_write_buffer_size() + self.shared.limits.unread_bytes
        self.shared.broker.send(Flow(self.session, True), _not_answered)

    def resume_writing(self) -> None:
        self.is_writing_paused = False
        self.shared.broker.send(Flow(self.session, False), _not_answered)
        if self._is_choking:
            self._is_choking = False
            self.release()

    def is_choked(self) -> bool:
        """Whether it is owed so much, beside deliveries, that it must read before it asks for more."""
        return self.is_writing_paused and self._transport.get_write_buffer_size() > self._unsent_most

    # --- reading

    def _begin(self, data: bytes) -> None:
        self._beginning += data
        header = self._beginning[:8]
        if not any(known.startswith(header) for known in (PROTOCOL_HEADER, HEADER_OF_0_9)):
            self._transport.write(PROTOCOL_HEADER)
            self._transport.close()
        elif len(header) == 8:
            self._handshake = Handshake(self)
            self._handshake.start()
            rest, self._beginning = self._beginning[8:], b""
            if rest:
                self._read(rest)

    def _read(self, data: bytes) -> None:
        self._is_reading = True
        try:
            self._incoming.feed(data)
        except AmqpError as error:
            self.end(error)
        except LanewayError as error:
            self.end(amqp_error(error))
        except Exception:
            self._give_up()
        self._is_reading = False

    def _give_up(self) -> None:
        log.exception("a connection is given up")
        self.end(AmqpError(541, "the server has made a mistake; see its log"))

    def guarded(self, reply: Callable[[Any], bytes], answer: Any) -> bytes:
        """A reply made of the broker's answer. If it cannot be made, the connection ends instead of waiting for it."""
        try:
            return reply(answer)
        except Exception:
            self._give_up()
            return b""

    def hold(self) -> None:
        """Read nothing more until as many releases came."""
        self._holds += 1
        if self._holds == 1 and not self.is_gone and not self._transport.is_closing():
            self._incoming.is_held = True
            self._transport.pause_reading()

    def release(self) -> None:
        self._holds -= 1
        if self._holds == 0 and not self.is_gone and not self._transport.is_closing():
            self._incoming.is_held = False
            self._transport.resume_reading()
            if not self._is_reading:  # else it goes on by itself
                self._read(b"")

    def writing(self, count: int) -> None:
        """So many bytes are on their way to the disk: beyond a limit nothing more is read until some arrived."""
        was = self.unconfirmed_bytes
        self.unconfirmed_bytes += count + 1
        if was <= self.shared.limits.unconfirmed_bytes < self.unconfirmed_bytes:
            self.hold()

    def written(self, count: int) -> None:
        was = self.unconfirmed_bytes
        self.unconfirmed_bytes -= count + 1
        if self.unconfirmed_bytes <= self.shared.limits.unconfirmed_bytes < was:
            self.release()

    def block(self, call: Callable[[], None]) -> None:
        """The disk takes nothing now: what was to be done waits for a later sweep, and so does all behind it."""
        if not self._blocked:
            self.hold()
        self._blocked.append(call)

    def unblock(self) -> None:
        if self._blocked:
            todo, self._blocked = self._blocked, []
            try:
                for call in todo:
                    call()
            except AmqpError as error:
                self.end(error)
            except LanewayError as error:
                self.end(amqp_error(error))
            self.release()

    # --- what incoming hands over

    def takes(self, channel: int, method: int) -> bool:
        if self._is_closing:
            return False
        found = self.channels.get(channel)
        if found is None:
            raise AmqpError(504, "expected 'channel.open'", method=method)
        return not found.is_closing

    def on_method(self, channel: int, number: int, payload: bytes) -> None:
        method = METHODS.get(number)
        self.method = number
        if method is None:
            raise AmqpError(503, f"there is no method {number >> 16}, {number & 0xFFFF}")
        if self._is_closing:
            if number == _CLOSE_OK:
                self._transport.close()
            elif number == _CLOSE and not self._is_lingering:
                self._close_ok()
            return
        if channel:
            self._on_channel(channel, method, payload)
        else:
            self._on_connection(method, payload)

    def on_content_size(self, channel: int, size: int) -> None:
        self.method = _PUBLISH
        most = self.shared.limits.body_bytes
        if size > most:
            self._end_channel(channel, AmqpError(406, f"message size {size} is larger than max size {most}"))

    def on_large_content(self, size: int, *, is_alone: bool) -> None:
        intake = self.shared.intake
        if not (is_alone and intake.is_waited_for) and intake.take(size, is_known=True):
            return
        if not is_alone:  # to wait for room while others wait for what is held here would be to wait for ever
            raise AmqpError(506, "too many large messages are being received at once; publish them one after the other")
        self.hold()
        self._waits_for_room = intake.take_later(size, self._room)

    def _room(self) -> None:
        self._waits_for_room = None
        asyncio.get_running_loop().call_soon(self.release)  # what it read already may make room for the next, and so on

    def on_large_content_end(self, size: int) -> None:
        if self._waits_for_room is None:
            self.shared.intake.give_back(size)
        else:  # it is the one that waits: all others on its connection are behind it
            self.shared.intake.stop_waiting(self._waits_for_room)
            self._room()

    def give_way(self) -> None:
        self.hold()
        asyncio.get_running_loop().call_soon(self.release)

    def on_publishes(self, channel: int, publishes: list[tuple[bytes, bytes, bytes]]) -> None:
        self.method = _PUBLISH
        try:
            taken = publishing.publish(self.channels[channel], publishes)
            if taken < len(publishes):
                self.hold()
                asyncio.get_running_loop().call_soon(self._go_on_publishing, channel, publishes[taken:])
        except AmqpError as error:
            self._end_channel(channel, error)
        except LanewayError as error:
            self._end_channel(channel, amqp_error(error))

    def _go_on_publishing(self, channel: int, publishes: list[tuple[bytes, bytes, bytes]]) -> None:
        if channel in self.channels and not self.channels[channel].is_closing:
            self.on_publishes(channel, publishes)
        self.release()

    def on_acks(self, channel: int, acks: list[tuple[int, int, bool]]) -> None:
        if self._is_closing:
            return
        self.method = _ACK
        found = self.channels.get(channel)
        if found is None:
            raise AmqpError(504, "expected 'channel.open'")
        if not found.is_closing:
            try:
                found.ack(acks)
            except AmqpError as error:
                self._end_channel(channel, error)

    # --- what the broker pushes

    def next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def forget_consumer(self, number: int, _: object = None) -> None:
        self.consumers.pop(number, None)

    def _on_push(self, pushes: list[Push]) -> None:
        delivered: dict[Channel, list[tuple[Consumer, Deliveries]]] = {}
        for push in pushes:
            consumer = self.consumers.get(push.consumer)
            if isinstance(push, Delivered):
                if consumer is None:  # it was cancelled while these were on their way
                    d = push.deliveries
                    request = SettleHeld(self.session, d.queue, d.seqs, d.leases, "release", push.consumer)
                    self.shared.broker.send(request, _not_answered)
                elif consumer.channel in delivered:
                    delivered[consumer.channel].append((consumer, push.deliveries))
                else:
                    delivered[consumer.channel] = [(consumer, push.deliveries)]
            elif consumer is not None:
                del self.consumers[push.consumer]
                consumer.ended()
        for channel, parts in delivered.items():
            consuming.deliver(channel, parts)

    def _on_connection(self, method: Method, payload: bytes) -> None:
        assert self._handshake is not None
        if method.number == _CLOSE:
            self._end_channels()
            self._close_ok()
        elif self._handshake.state != "running":
            self._handshake.on_method(self._decode(method, payload))
        elif method.number == _UPDATE_SECRET:
            self.write(encode("connection.update-secret-ok", 0))
        else:
            raise AmqpError(504, "unexpected method in connection state running")

    def _on_channel(self, number: int, method: Method, payload: bytes) -> None:
        channel = self.channels.get(number)
        if channel is None:
            self._open_channel(number, method)
        elif method.number == _CHANNEL_CLOSE_OK and channel.is_closing:
            del self.channels[number]
        elif method.number == _CHANNEL_CLOSE:
            if channel.is_closing:
                self.write(encode("channel.close-ok", number))  # both closed at once
            else:
                self._forget_channel(channel)
                channel.close()
                if channel.outbox.is_waiting:
                    self._leaving[number] = channel.outbox
        elif method.number == _CHANNEL_OPEN and not channel.is_closing:
            raise AmqpError(504, "second 'channel.open' seen")
        elif not channel.is_closing:
            self._carry_out(channel, self._decode(method, payload))

    def _carry_out(self, channel: Channel, arguments: Arguments) -> None:
        self.method = arguments.method.number
        try:
            channel.on_method(arguments)
        except NOT_NOW:
            self.block(lambda: self._carry_out(channel, arguments))
        except AmqpError as error:
            self._end_channel(channel.number, error)
        except LanewayError as error:
            self._end_channel(channel.number, amqp_error(error))

    @staticmethod
    def _decode(method: Method, payload: bytes) -> Arguments:
        try:
            return method.decode(payload)
        except Malformed:
            octets = ",".join(map(str, payload[4:]))
            raise AmqpError(501, f"cannot decode <<{octets}>>") from None

    # --- channels

    def _open_channel(self, number: int, method: Method) -> None:
        if self._handshake is None or self._handshake.state != "running" or method.number != _CHANNEL_OPEN:
            raise AmqpError(504, "expected 'channel.open'")
        if len(self.channels) >= self.channel_max:
            count = len(self.channels)
            raise AmqpError(
                530,
                f"number of channels opened ({count}) has reached the negotiated channel_max ({self.channel_max})",
                method=0,
            )
        channel = self.channels[number] = Channel(self, number)
        before = self._leaving.pop(number, None)
        if before is not None and before.is_waiting:
            channel.outbox = before  # the new channel speaks after the old one's close-ok
        channel.outbox.send(encode("channel.open-ok", number, b""))

    def _forget_channel(self, channel: Channel) -> None:
        del self.channels[channel.number]
        self._incoming.forget(channel.number)

    def _end_channel(self, number: int, error: AmqpError) -> None:
        """The channel made a mistake: it is told, and ignored until it confirms that it ended."""
        if error.ends_connection:
            self.end(error)  # not raised: nobody is there to catch it in a callback, or in a later turn
            return
        self._incoming.forget(number)
        self._note_error(error)
        method = self.method if error.method is None else error.method
        text = error.text
        log.info("channel %d of %s ends: %s", number, self._who(), text)
        self.channels[number].fail(encode("channel.close", number, error.code, text, method >> 16, method & 0xFFFF))

    def _note_error(self, error: AmqpError) -> None:
        if error.code != 320:  # somebody wants it to end
            self.shared.errors.note(AMQP, error.name, is_servers=error.is_servers)

    def fail_channel(self, channel: Channel, error: AmqpError, method: int) -> None:
        """A method that was carried out without an answer turns out to be a mistake."""
        if self.channels.get(channel.number) is channel and not channel.is_closing:
            self.method = method
            self._end_channel(channel.number, error)

    # --- writing

    def write(self, data: Data) -> None:
        if self.is_gone:
            return
        self._out.append(data)
        if not self._is_flush_planned:
            self._is_flush_planned = True
            self.shared.broker.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_planned = False
        if self._out and not self.is_gone and not self._transport.is_closing():
            out, self._out = self._out, []
            self._quiet_out = 0
            self._transport.writelines(out)
            if self.is_writing_paused and not self._is_choking and self.is_choked():
                self._is_choking = True
                self.hold()

    def call_soon(self, call: Callable[[], None]) -> None:
        self.shared.broker.call_soon(call)

    # --- the beginning, as the handshake sees it

    def peer_name(self) -> str | None:
        return common_name(self._transport.get_extra_info("ssl_object"))

    def set_frame_bytes(self, count: int) -> None:
        self.frame_bytes = self._incoming.frame_bytes = count

    def opened(self) -> None:
        text = "AMQP connection from %s opened: account %r, virtual host %r"
        self._tell(logging.INFO, "AMQP connections", text, self.peer, self._who(), self.vhost)
        self.write(encode("connection.open-ok", 0, ""))
        if self.shared.blocked_by:
            self.tell_blocked()

    def tell_blocked(self) -> None:
        """The disk or the memory is full, or no longer: said to clients that want to know."""
        if self._is_running() and self.client_capabilities.get("connection.blocked") is True:
            low = self.shared.blocked_by
            self.write(encode("connection.blocked", 0, low) if low else encode("connection.unblocked", 0))

    def _is_running(self) -> bool:
        return self._handshake is not None and self._handshake.state == "running" and not self._is_closing

    def _who(self) -> str:
        return self.account.name if self.account is not None else "a client"

    # --- the end

    def end(self, error: AmqpError) -> None:
        """The client made a mistake that no channel can carry alone, or the server stops."""
        if self._is_closing or self.is_gone:
            return
        self._note_error(error)
        method = self.method if error.method is None else error.method
        if error.code in (501, 505) and error.method is None and "cannot decode" not in error.explanation:
            method = 0  # frames have no method
        log.info("the connection of %s ends: %s", self._who(), error.text)
        self._end_channels()
        self._is_closing = True
        self._age = 0
        self.write(encode("connection.close", 0, error.code, error.text, method >> 16, method & 0xFFFF))

    def abort_soon(self) -> None:
        self._is_closing = True
        self._transport.close()

    def _close_ok(self) -> None:
        """The client ends it. It is left to close the socket as well: some are still sending what they had in hand,
        and would take an early end for a failure."""
        self.write(encode("connection.close-ok", 0))
        self._is_closing = self._is_lingering = True
        self._age = 0

    def _end_channels(self) -> None:
        for channel in list(self.channels.values()):
            channel.end()
        self.channels.clear()
        self.consumers.clear()
        self._incoming.forget_all()
        self.shared.broker.send(EndSession(self.session), _not_answered)

    def state(self) -> str:
        """In a word, for people."""
        if self._is_closing:
            return "closing"
        return ("blocked" if self._blocked else "running") if self._is_running() else "starting"

    def close_by(self, why: str) -> None:
        """Somebody ends it from outside."""
        if self._is_running():
            self._revoke(AmqpError(320, why, method=0))
        else:
            self._transport.close()

    def stop(self, why: str = "broker forced connection closure with reason 'shutdown'") -> None:
        """The server stops, or the virtual host is gone."""
        if self._is_running():
            self.end(AmqpError(320, why, method=0))
        else:
            self._transport.close()

    def recheck(self) -> None:
        """Its account was changed: end what it may no longer do (docs/access.md)."""
        access, login = self.shared.access, self.login
        if login is None or self._is_closing:
            return
        why = access.lost(login)
        if why:
            self._revoke(AmqpError(320, why, method=0))
        elif self._is_running() and not access.may_enter(login.account, self.vhost):
            text = f"access to vhost '{self.vhost}' refused for user '{login.account.name}'"
            self._revoke(AmqpError(530, text, method=0))
        else:
            for channel in list(self.channels.values()):
                error = channel.consumer_refusal()
                if error is not None:
                    self.fail_channel(channel, error, _CONSUME)

    def _revoke(self, error: AmqpError) -> None:
        """End the connection with all it was still to do."""
        if self._blocked:
            self._blocked.clear()
            self.release()
        self.end(error)

    def abort(self) -> None:
        self._transport.abort()

    def sweep(self, sweeps_a_second: float) -> None:
        """Called for every connection at every tick of the server."""
        limits = self.shared.limits
        self._quiet_in += 1
        self._quiet_out += 1
        self._age += 1
        if self._blocked and not self.shared.blocked_by:
            self.unblock()
        if self._is_closing:
            if self._age > (limits.linger_ms if self._is_lingering else limits.closing_ms) / 1000 * sweeps_a_second:
                self._transport.close() if self._is_lingering else self._transport.abort()
        elif not self._is_running():
            if self._age > limits.handshake_ms / 1000 * sweeps_a_second:
                self._transport.abort()
        elif not self._holds and self._incoming.is_overdue(limits.receive_timeout_ms / 1000 * sweeps_a_second):
            self.end(AmqpError(506, "a large message did not come whole in time", method=_PUBLISH))
        elif self.is_writing_paused:
            unsent, self._unsent = self._unsent, self._transport.get_write_buffer_size()
            self._stuck = self._stuck + 1 if self._unsent >= unsent else 0  # a slow client is not a dead one
            if self._stuck > limits.send_timeout_ms / 1000 * sweeps_a_second:
                self._transport.abort()
        elif self.heartbeat_s:
            self._beat(self.heartbeat_s * sweeps_a_second)

    def _beat(self, interval: float) -> None:
        if self._quiet_in > 2 * interval and not self._holds:
            log.info("missed heartbeats from %s, timeout: %d s", self._who(), self.heartbeat_s)
            self._transport.abort()
        elif self._quiet_out >= interval / 2:
            self.write(HEARTBEAT_FRAME)


def _not_answered(answer: object) -> None:
    """The request has no answer."""
