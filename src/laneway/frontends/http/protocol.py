"""One HTTP/1.1 connection: bytes to requests, responses back in the order of their requests.

It knows framing, order, limits and back-pressure, and nothing of what a request means: that is the Application's.

    data_received ─▶ _read ─▶ head (cache, or parse_head) ─▶ body ─▶ Call ─▶ application.handle
                                                                       │  … a callback later …
    transport.write ◀─ _flush, in order ◀─ call.answer ◀───────────┘

A request whose head is in the cache and whose body came with it costs no state at all: two slices and a look-up.
Reading stops at the next request while too many are unanswered, while one is worked on that others must wait for
(`hold`), and while the client does not take its answers; what was received but not read waits in `_rest`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast

import msgspec

from laneway.access import Origin, Peer, TrustedProxies
from laneway.errors import InvalidInput, LanewayError
from laneway.frontends.doors.directory import LocalDirectory, tls_version
from laneway.frontends.http.chunks import ChunkedBody
from laneway.frontends.http.errors import HttpError
from laneway.frontends.http.head import Head, HeadCache, check_beginning, is_short, parse_head
from laneway.frontends.http.limits import HttpLimits
from laneway.frontends.http.listing import ListedHttp
from laneway.frontends.http.responses import CONTINUE, JSON, Framer
from laneway.resources.intake import Intake
from laneway.telemetry.floods import FloodLog
from laneway.telemetry.meter import ErrorCounts

log = logging.getLogger("laneway.http")

_LINGER_TICKS = 3  # how long a refused client may go on sending before the connection is cut
_SHORT_TICKS = 3  # for a client to take its answers while memory is short
_STRANGERS_UNSENT_BYTES = 64 * 1024  # instead of HttpLimits.unsent_bytes, while nobody known has asked
_STREAMS_UNSENT_BYTES = 256 * 1024  # of an answer in pieces, when the next piece is there
_CRUMB_BYTES = 4096  # of a body: smaller pieces of it are joined as they come
_LOOKS = 64  # at an incomplete head, whenever more of it comes
_TURNED_AWAY_COUNT = 64  # connections beyond the limit that are given this time; further ones are cut at once


class Application(Protocol):
    """What answers requests. Several may share a port: each head goes to the first that takes it."""

    def takes(self, head: Head) -> bool:
        """Whether requests with this head are for this application; the last one takes every head."""

    def plan(self, head: Head) -> object:
        """All that can be said about a head without its body; kept as head.plan as long as the head is remembered."""

    def learn(self, raw: bytes, head: Head) -> None:
        """Called with a head that call.remember() was called for, if no other request will have the very same head."""

    def recall(self, raw: bytes) -> Head | None:
        """A head with its plan, made of what was learned from others like it; None if it must be parsed."""

    def handle(self, call: Call) -> None:
        """Begin to answer; call.answer is called now or later, once. Raises nothing."""

    def knows(self, call: Call) -> bool:
        """Whether the head alone tells that somebody asks who has an account here. Asked before a body is received."""

    def end_wait(self, call: Call) -> None:
        """Let a call wait no longer (call.waiter is set): answer it with what there is, unless it is abandoned."""

    def recheck(self, call: Call) -> None:
        """Accounts were changed while a call waits (call.waiter is set): refuse it if it would be refused now."""

    def refusal(self, error: LanewayError) -> tuple[int, bytes, bytes]:
        """(status, body, header lines) that tell of an error."""


class Ticks:
    """The time limits of a connection, counted in sweeps of the server: one timer for all connections."""

    def __init__(self, limits: HttpLimits, sweep_ms: int) -> None:
        self.idle = -(-limits.idle_timeout_ms // sweep_ms)
        self.receive = -(-limits.receive_timeout_ms // sweep_ms)
        self.send = -(-limits.send_timeout_ms // sweep_ms)


class HttpShared:
    """What all connections of one server have in common."""

    def __init__(
        self,
        applications: Sequence[Application],
        limits: HttpLimits,
        intake: Intake,
        framer: Framer,
        ticks: Ticks,
        proxies: TrustedProxies,
        floods: FloodLog,
        directory: LocalDirectory,
        errors: ErrorCounts | None = None,
    ) -> None:
        self.errors = errors or ErrorCounts()
        self.applications = applications  # the last one takes every head, and what is no head at all
        self.recalls = [application.recall for application in applications]
        self.limits = limits
        self.intake = intake
        self.framer = framer
        self.ticks = ticks
        self.proxies = proxies
        self.floods = floods
        self.directory = directory
        self.heads = HeadCache()
        self.connections: set[HttpConnection] = set()
        self.is_stopping = False
        self.turned_away: set[HttpConnection] = set()  # told that there are too many, and about to be cut
        self.on_connection: Callable[[], None] = lambda: None  # called when one came
        self.on_empty: Callable[[], None] = lambda: None  # called when the last one is gone

    def farewell(self, error: HttpError) -> bytes:
        """A response to what is no request, after which the connection ends."""
        return self.framer.special(*self.applications[-1].refusal(error), connection=b"close", omit_body=False)


class Call(msgspec.Struct, eq=False):
    """One request and its answer; also its place in the order of answers."""

    connection: HttpConnection
    head: Head
    body: bytes
    is_last: bool  # there is no next one on its connection
    account: Any = None  # who is asking, once the application knows
    waiter: Any = None  # what the application knows a wait by; set while the answer waits for what may never come
    response: bytes | None = None
    taken: tuple[int, bool] | None = (
        None  # bytes that its body counts for in the Intake, and whether of one who is known
    )

    def doing(self) -> str:
        """In short, for a log line."""
        target = self.head.target[:100].decode("latin-1")
        who = getattr(self.account, "name", "nobody known")
        return f"{self.head.method} {target!r} of {who!r} from {self.connection.peer}"

    @property
    def is_abandoned(self) -> bool:
        """Nobody is there to read the answer, or soon will be."""
        return self.connection.is_gone or self.connection.is_closing()

    @property
    def is_from_here(self) -> bool:
        """Whether a program on this machine asks, and no proxy for somebody else. A proxy of long ago adds nothing to
        a request but the version that it speaks."""
        peer, forwarding = self.connection.peer, self.head.forwarding
        if peer.is_here:
            return forwarding is None and self.head.version != "1.0"
        proxies = self.connection.shared.proxies
        return peer.is_loopback and forwarding is not None and proxies.are_here(forwarding.addresses)

    @property
    def client_address(self) -> str:
        """Of whoever asks, as far as trusted proxies tell."""
        peer, forwarding = self.connection.peer, self.head.forwarding
        return peer.address if forwarding is None else self.connection.shared.proxies.client(peer, forwarding.addresses)

    def origin(self, way: str) -> Origin:
        """Of a login in this way."""
        return Origin(way, str(self.connection.peer), self.client_address)

    @property
    def who(self) -> str:
        """The account that asks, and from where, for the log."""
        peer, address = self.connection.peer, self.client_address
        through = f" through {peer}" if address != peer.address else ""
        return f"{self.account.name!r} from {address if through else peer}{through}"

    @property
    def scheme(self) -> str:
        """How the client speaks, https or http, perhaps with a trusted proxy in between."""
        connection, forwarding = self.connection, self.head.forwarding
        if connection.peer.is_proxy and forwarding is not None and forwarding.proto in ("http", "https"):
            return forwarding.proto
        return "https" if connection.is_tls else "http"

    def remember(self) -> None:
        """The application knows who asks: what was made of the head serves for others like it. Nothing is remembered
        of what anybody may send."""
        head = self.head
        raw, head.raw = head.raw, b""
        if raw and head.is_repeated:
            self.connection.shared.heads.remember(raw, head)
        elif raw:
            head.application.learn(raw, head)

    def answer(
        self, status: int, body: bytes | bytearray = b"", headers: bytes = b"", content_type: bytes = JSON
    ) -> None:
        connection = self.connection
        if self.response is not None or connection.is_gone or connection.is_closing():
            return
        framer = connection.shared.framer
        if self.head.is_plain and not connection.shared.is_stopping and (status != 204 or not headers):
            response = (
                framer.no_content() if status == 204 else framer.head(status, len(body), content_type, headers) + body
            )
        else:
            self.is_last = self.is_last or connection.is_ending_with(self)
            response = self._special(framer, status, body, headers, content_type)
        connection.send(self, response)

    def answer_pieces(self, status: int, pieces: list[bytes | memoryview], size: int) -> None:
        """As answer, with a body in pieces of this size: they are joined once, with the head in front of them."""
        connection = self.connection
        if not self.head.is_plain or connection.shared.is_stopping or self.response is not None or self.is_abandoned:
            self.answer(status, b"".join(pieces))
            return
        pieces.insert(0, connection.shared.framer.head(status, size))
        connection.send(self, b"".join(pieces))

    def head_of_answer(self, status: int, size: int) -> bytes:
        """What stands before a body of this size, for answer_with()."""
        return self.connection.shared.framer.head(status, size)

    def answer_with(self, response: bytes) -> None:
        """Hot: an answer with its head in front of it, where that has nothing to say about the connection."""
        if self.response is None:
            self.connection.send(self, response)

    def begin_stream(self, content_type: bytes) -> None:
        """Answer with what comes little by little: the last answer of this connection."""
        self.connection.begin_stream(self, self.connection.shared.framer.stream_head(content_type))

    def stream(self, piece: bytes) -> None:
        self.connection.stream(self, piece)

    def end_stream(self) -> None:
        self.connection.end_stream(self)

    def refuse(self, error: LanewayError) -> None:
        application: Application = self.head.application or self.connection.shared.applications[-1]
        status, body, headers = application.refusal(error)
        self.note_error("http", error.code, status)
        self.answer(status, body, headers)

    def note_error(self, protocol: str, code: str, status: int) -> None:
        """Count an answer that tells of an error: also 429 is for what the server, or a queue, has no room for."""
        self.connection.shared.errors.note(protocol, code, is_servers=status >= 500 or status == 429)

    def _special(
        self, framer: Framer, status: int, body: bytes | bytearray, headers: bytes, content_type: bytes
    ) -> bytes:
        word = b"close" if self.is_last else b"keep-alive" if self.head.version == "1.0" else b""
        return framer.special(
            status, body, headers, connection=word, omit_body=self.head.method == "HEAD", content_type=content_type
        )


class HttpConnection(asyncio.Protocol):
    def __init__(self, shared: HttpShared, peer: Peer | None = None) -> None:
        self.shared = shared
        self.is_gone = False
        self._announced = peer  # by a proxy that passes bytes through
        self.peer: Peer
        self.peer_kind = 0
        self.is_tls = False
        self._listed_as = 0  # in the directory of connections
        self._transport: asyncio.Transport
        self.is_closing: Callable[[], bool]
        self._limits = shared.limits
        self._known_heads = shared.heads.known
        self._slots: deque[Call] = deque()  # unanswered, or answered behind an unanswered one
        # Since it was last looked at closely there were whole requests, one at a time, and nothing else: none of what
        # follows here stands in the way. Whatever changes that says so.
        self._is_usual = False
        # Receiving: a head that is not complete, or a body that is not, or data behind a request that must wait.
        self._rest = b""
        self._looks = self._looked_at_bytes = 0  # at a head that is not complete, to see whether it can be one
        self._head: Head | None = None
        self._pieces: list[bytes | bytearray] | None = None  # of a body of known length, joined when it is all here
        self._missing_bytes = 0  # of that body
        self._chunked: ChunkedBody | None = None
        self._is_known = False  # who sends that body
        self._taken_bytes = 0  # that it counts for in the Intake, or a large head that is not all here
        self._ticks = 0  # sweeps since the current phase began
        self._is_receiving = False
        self._must_continue = False  # 100 Continue is owed once the answers before it are out
        # Holding back
        self._held_by: Call | None = None
        self._is_reading_paused = False
        self._is_writing_paused = False
        self._is_corked = False  # answers given while reading leave together at its end
        self._is_flush_planned = False
        self._unsent_most = min(_STRANGERS_UNSENT_BYTES, shared.limits.unsent_bytes)
        self._ready_bytes = 0  # of answers that wait for the one before them, or for the end of reading
        # Ending
        self._is_deaf = False  # nothing more is read: a request was refused in a way that leaves no next one
        self._is_lingering = False

    # --- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's only looks like one
        self.is_closing = transport.is_closing
        shared = self.shared
        self.peer = self._announced or shared.proxies.peer(transport.get_extra_info("peername"))
        self.peer_kind = self.peer.kind
        self.is_tls = transport.get_extra_info("ssl_object") is not None
        transport.set_write_buffer_limits(high=self._unsent_most)
        shared.on_connection()
        if shared.is_stopping or not shared.intake.admit():
            self._turn_away()
        else:
            shared.connections.add(self)
            log.debug("HTTP connection from %s opened", self.peer)
            self._listed_as = shared.directory.enter(ListedHttp(self, tls_version(transport)))

    def doing(self) -> str:
        """In short, for a log line."""
        return f"HTTP from {self.peer}"

    def _turn_away(self) -> None:
        sentence = "the server is stopping"
        if not self.shared.is_stopping:
            most = self.shared.intake.most_connections
            self.shared.floods.say(
                log,
                logging.WARNING,
                "connections turned away",
                self.peer.address,
                "HTTP connection from %s turned away: there are %d already",
                self.peer,
                most,
            )
            sentence = f"there are {most} connections already: use fewer, and keep them open"
        response = self.shared.farewell(HttpError(503, "too_many_connections", sentence, headers=b"Retry-After: 1\r\n"))
        self._is_deaf = True
        self._transport.write(response)
        if len(self.shared.turned_away) < _TURNED_AWAY_COUNT:
            self.shared.turned_away.add(self)
            self._linger()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_gone = True
        self._is_usual = False
        shared = self.shared
        if self in shared.connections:
            shared.connections.remove(self)
            shared.intake.leave()
            log.debug("HTTP connection from %s closed", self.peer)
            shared.directory.leave(self._listed_as)
        shared.turned_away.discard(self)
        self._end_waits()
        for call in self._slots:
            self._give_back(call)
        self._slots.clear()
        self._rest = b""
        self._forget_body()
        if not shared.connections:
            shared.on_empty()

    def eof_received(self) -> bool:
        """The client sends no more. It may have gone or only have finished: what waits for an arrival waits for
        nobody, and what is being done is still answered."""
        self._is_usual = False
        self._is_deaf = True
        self._rest = b""
        self._forget_body()
        if self._is_lingering:
            return False
        self._end_waits()
        return bool(self._slots) and self._transport.can_write_eof()  # TLS knows no half of a connection

    @property
    def is_pipelined(self) -> bool:
        """More than one request has no answer yet."""
        return len(self._slots) > 1

    def data_received(self, data: bytes) -> None:
        if not self._slots and (self._is_usual or self._is_clear()):
            # Hot: a whole request with a head that is known, and nothing before it or behind it.
            end = data.find(b"\r\n\r\n") + 4
            raw = data[:end]
            head = self._known_heads.get(raw) or self._recall(raw)
            if head is not None and end + head.content_length == len(data) and head.keep_alive:
                self._ticks = 0
                if not self._is_usual:
                    self._is_usual = True
                    self._is_receiving = False  # blank lines came before it
                call = Call(self, head, data[end:], False)
                self._slots.append(call)
                head.application.handle(call)
                return
        if self._is_deaf:
            return
        if self._rest:
            data = self._rest + data
            self._rest = b""
            if self._taken_bytes and self._head is None:
                self._forget_body()  # of the head that may be all here now
        self._read(data)

    def _is_clear(self) -> bool:
        """Whether a request that comes now is read and answered without a look at what came before it."""
        return not (
            self._rest
            or self._is_deaf
            or self._is_writing_paused
            or self._head is not None
            or self._is_flush_planned
            or self._is_reading_paused
            or self._held_by is not None
        )

    def pause_writing(self) -> None:
        self._is_usual = False
        self._is_writing_paused = True
        self._ticks = 0
        self._trust(self._slots)  # it is still paused, but not as soon again

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self._ticks = 0
        self._go_on()

    # --- reading

    def _read(self, data: bytes) -> None:
        at, size = 0, len(data)
        slots, known, most = self._slots, self._known_heads, self._limits.pipelined_count
        self._is_usual = False
        self._is_corked = True
        try:
            while at < size and not self._is_deaf:
                if self._head is not None:
                    at = self._read_body(data, at)
                    continue
                if self._held_by is not None or self._is_writing_paused or len(slots) >= most or self._owes_enough():
                    self._rest = data[at:]
                    self._pause_reading()
                    break
                end = data.find(b"\r\n\r\n", at) + 4
                if end < 4:
                    self._keep_beginning(data[at:])
                    break
                raw = data[at:end]
                head = known.get(raw)
                if head is None:
                    head = self._parse(raw)
                    if head is None:
                        at = end
                        continue
                at = end
                stop = end + head.content_length
                if stop > size or head.chunked or head.expects_continue:
                    self._begin_body(head)
                else:
                    at = stop
                    self._arrived(head, data[end:stop])
        except HttpError as error:
            self._refuse(error)
        except Exception:
            log.exception("a connection is given up: it cannot be known where its next request begins")
            self._is_deaf = True
            self._transport.abort()
        self._is_corked = False
        if slots and slots[0].response is not None:
            if self._rest:
                self._plan_flush()  # there is more to read after it: not from here, or the calls would pile up
            else:
                self._flush()

    def _has_enough_to_send(self) -> bool:
        return self._is_writing_paused or self._owes_enough()

    def _owes_enough(self) -> bool:
        if self._ready_bytes <= self._unsent_most:
            return False
        self._trust(self._slots)
        return self._ready_bytes > self._unsent_most

    def _trust(self, calls: Iterable[Call]) -> None:
        """Whoever turns out to be known may be owed more answers than a stranger: what anybody can ask for must not
        fill the memory of those who do not take it."""
        if self._unsent_most < self._limits.unsent_bytes and any(call.account is not None for call in calls):
            self._unsent_most = self._limits.unsent_bytes
            self._transport.set_write_buffer_limits(high=self._unsent_most)

    def _recall(self, raw: bytes) -> Head | None:
        """A head that some application has seen the like of. One that is beyond the limits is not, so that whoever
        parses it tells."""
        limits = self._limits
        if len(raw) <= limits.head_bytes:
            for recall in self.shared.recalls:
                head = recall(raw)
                if head is not None:
                    return head if head.content_length <= limits.body_bytes else None
        return None

    def _parse(self, raw: bytes) -> Head | None:
        head = self._recall(raw)
        if head is not None:
            return head
        head = parse_head(raw, self._limits)
        if head is not None:
            head.application = next(one for one in self.shared.applications if one.takes(head))
            head.plan = head.application.plan(head)
            head.headers = []  # whoever wanted them all has looked
            head.raw = raw if is_short(raw) else b""
        return head

    def _keep_beginning(self, beginning: bytes) -> None:
        """The head is not all here. Refuse it now if it can never be one: looked for whenever more comes, and from a
        client that sends in crumbs only when a line ends, or looking would cost more than it saves."""
        if not self._is_receiving:
            self._is_receiving = True
            self._ticks = 0
            self._looks = self._looked_at_bytes = 0
        self._looks += 1
        ends_line = b"\n" in beginning[self._looked_at_bytes :]
        if self._looks <= _LOOKS or ends_line or len(beginning) > self._limits.head_bytes:
            self._looked_at_bytes = len(beginning)
            if beginning.strip(b"\r\n"):
                check_beginning(beginning, self._limits)
        self._rest = beginning
        if len(beginning) > _CRUMB_BYTES:
            self._is_known = False
            self._take(len(beginning))

    def _begin_body(self, head: Head) -> None:
        self._head = head
        self._is_known = head.application.knows(Call(self, head, b"", False))
        self._is_receiving = True
        self._ticks = 0  # a body has its own time, whatever its head took
        if head.chunked:
            self._chunked = ChunkedBody(self._limits)
        else:
            self._pieces = []
            self._missing_bytes = head.content_length
        if head.expects_continue:
            self._must_continue = True
            self._flush()

    def _read_body(self, data: bytes, at: int) -> int:
        head = self._head
        assert head is not None
        if self._chunked is not None:
            before = at
            at = self._chunked.feed(data, at)
            self._take(at - before)
            if self._chunked.is_complete:
                self._finish_body(head, self._chunked.body)
            return at
        assert self._pieces is not None
        stop = at + self._missing_bytes
        self._take(min(stop, len(data)) - at)
        self._add_piece(data[at:stop])  # a read that is all body is not copied here
        if stop > len(data):
            self._missing_bytes = stop - len(data)
            return len(data)
        self._finish_body(head, b"".join(self._pieces))
        return stop

    def _add_piece(self, piece: bytes) -> None:
        """Large ones are kept as they come; crumbs are put together, or they would take many times their size."""
        pieces = self._pieces
        assert pieces is not None
        if len(piece) >= _CRUMB_BYTES or not pieces:
            pieces.append(piece)
            return
        if not isinstance(pieces[-1], bytearray):
            pieces.append(bytearray())
        pieces[-1] += piece

    def _finish_body(self, head: Head, body: bytes) -> None:
        taken, self._taken_bytes = (self._taken_bytes, self._is_known), 0
        self._forget_body()
        self._must_continue = False
        self._arrived(head, body, taken)

    def _take(self, byte_count: int) -> None:
        """Bytes of a body that is not all here count until it is answered, over all connections."""
        if not self.shared.intake.take(byte_count, is_known=self._is_known):
            raise HttpError(
                503,
                "too_much_at_once",
                "the bodies of requests that are being received or worked on take as much memory as they may: "
                "try again soon, or send less at once",
                headers=b"Retry-After: 1\r\n",
            )
        self._taken_bytes += byte_count

    def _forget_body(self) -> None:
        self._head = self._pieces = self._chunked = None
        if self._taken_bytes:
            self.shared.intake.give_back(self._taken_bytes, is_known=self._is_known)
            self._taken_bytes = 0

    def _give_back(self, call: Call) -> None:
        if call.taken is not None:
            byte_count, is_known = call.taken
            call.taken = None
            self.shared.intake.give_back(byte_count, is_known=is_known)

    def _arrived(self, head: Head, body: bytes, taken: tuple[int, bool] | None = None) -> None:
        self._is_receiving = False
        self._ticks = 0
        is_last = not head.keep_alive
        call = Call(self, head, body, is_last, taken=taken)
        self._slots.append(call)
        if is_last:
            self._is_deaf = True
        head.application.handle(call)

    def _refuse(self, error: HttpError) -> None:
        """Answer what cannot be read as a request, after the answers before it; then there is no next request."""
        self._is_usual = False
        self._is_deaf = True
        self._rest = b""
        self._is_receiving = False
        self._forget_body()
        call = Call(self, _UNREADABLE, b"", True)
        self._slots.append(call)
        call.refuse(error)

    # --- holding back, and going on

    def hold(self, call: Call) -> None:
        """Let the requests behind this one wait until it is answered: their effects must come after its own."""
        self._is_usual = False
        self._held_by = call

    def release(self, call: Call) -> None:
        """Take back a hold before the answer is known."""
        if self._held_by is call:
            self._held_by = None
            if self._is_reading_paused:
                self._plan_flush()

    def _pause_reading(self) -> None:
        if not self._is_reading_paused:
            self._is_usual = False
            self._is_reading_paused = True
            self._transport.pause_reading()

    def _go_on(self) -> None:
        if not self._is_reading_paused or self._held_by is not None or self._has_enough_to_send():
            return
        if len(self._slots) >= self._limits.pipelined_count or self.is_gone or self._transport.is_closing():
            return
        rest, self._rest = self._rest, b""
        self._is_reading_paused = False
        if rest:
            self._read(rest)
        if not self._is_reading_paused and not self.is_gone and not self._transport.is_closing():
            self._transport.resume_reading()

    # --- answering

    def send(self, call: Call, response: bytes) -> None:
        """Answer a call when those before it have been answered; nothing, if nobody is there any more."""
        if self.is_gone or self.is_closing():
            return
        call.response = response
        slots = self._slots
        if self._is_usual and len(slots) == 1:  # hot: nothing else depends on it
            self._transport.write(response)
            slots.clear()
            return
        if self._held_by is call:
            self._held_by = None
        if call.taken is not None:
            self._give_back(call)
        self._ready_bytes += len(response)
        if self._is_corked or self._is_flush_planned:
            return
        if len(slots) == 1:
            self._flush()
        elif slots[0] is call or self._is_reading_paused:
            self._plan_flush()  # its neighbours are probably answered in the same turn of the loop

    # --- an answer in pieces

    def begin_stream(self, call: Call, head: bytes) -> None:
        if self._slots[0] is not call:
            raise InvalidInput("ask for a stream on a connection of its own: others wait for their answers on this one")
        self._is_usual = False
        self._is_deaf = call.is_last = True
        self._rest = b""
        self._transport.write(head)

    def stream(self, call: Call, piece: bytes) -> None:
        """Nothing is kept for one who does not take it."""
        if self.is_gone or self.is_closing():
            return
        if self._transport.get_write_buffer_size() > _STREAMS_UNSENT_BYTES:
            self._transport.abort()
        else:
            self._transport.write(piece)

    def end_stream(self, call: Call) -> None:
        if not self.is_gone and call in self._slots:
            self._slots.clear()
            self._transport.close()

    def _plan_flush(self) -> None:
        if not self._is_flush_planned:
            self._is_usual = False
            self._is_flush_planned = True
            asyncio.get_running_loop().call_soon(self._planned_flush)

    def _planned_flush(self) -> None:
        self._is_flush_planned = False
        self._flush()

    def _flush(self) -> None:
        if self.is_gone or self._transport.is_closing():
            return
        slots = self._slots
        ready: list[bytes] = []
        last: Call | None = None
        while slots and last is None:
            response = slots[0].response
            if response is None:
                break
            call = slots.popleft()
            ready.append(response)
            if call.is_last:
                last = call
        if ready:
            out = ready[0] if len(ready) == 1 else b"".join(ready)
            self._ready_bytes -= len(out)
            self._trust((call,))
            self._transport.write(out)
        if last is not None:
            self._end(last)
        elif not slots and self._is_deaf:
            self._transport.close()
        elif self._must_continue and not slots:
            self._must_continue = False
            self._transport.write(CONTINUE)
        if self._is_reading_paused:
            self._go_on()

    # --- ending

    def _end(self, last: Call) -> None:
        """Close after the last answer. A client that is still sending would have its answer torn away by a plain
        close, so it is listened to, deaf, for a little longer."""
        for call in self._slots:
            self._give_back(call)
        self._slots.clear()
        self._is_usual = False
        self._is_deaf = True
        if last.head is _UNREADABLE:
            self._linger()
        else:
            self._transport.close()

    def _linger(self) -> None:
        if self._transport.can_write_eof():  # not with TLS
            self._transport.write_eof()
        self._is_lingering = True
        self._ticks = 0
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._transport.resume_reading()

    def _end_waits(self) -> None:
        for call in list(self._slots):
            if call.waiter is not None:
                call.head.application.end_wait(call)

    def recheck(self) -> None:
        for call in list(self._slots):
            if call.waiter is not None:
                call.head.application.recheck(call)

    def is_ending_with(self, call: Call) -> bool:
        """The server stops and this is the last request that came: no other is read after it."""
        if not self.shared.is_stopping or self._slots[-1] is not call or self._is_receiving or self._rest:
            return False
        self._is_usual = False
        self._is_deaf = True
        return True

    def stop(self) -> None:
        """The server stops: end what waits for arrivals, close if there is nothing to answer, else after the last."""
        self._end_waits()
        if not self._slots and not self._is_receiving:
            self._transport.close()

    def calls(self) -> list[Call]:
        """Requests that are being answered."""
        return list(self._slots)

    def close_by_and_by(self) -> None:
        """Somebody ends it from outside: what waits is answered with what there is, what is being done with how it
        went, and nothing more is read."""
        self._is_usual = False
        self._is_deaf = True
        self._rest = b""
        self._end_waits()
        if not self._slots:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def sweep(self) -> None:
        """Called for every connection at every tick."""
        self._ticks += 1
        ticks = self.shared.ticks
        if self._is_lingering:
            if self._ticks > _LINGER_TICKS:
                self._transport.abort() if self._transport.can_write_eof() else self._transport.close()
        elif self._is_writing_paused:
            if self._ticks > (_SHORT_TICKS if self.shared.intake.is_memory_short else ticks.send):
                self._transport.abort()
        elif self._is_receiving:
            if self._ticks > ticks.receive:
                self._refuse_slow()
        elif self.is_closing():  # its last answers are not taken, and too few for _is_writing_paused
            if self._ticks > ticks.send:
                self._transport.abort()
        elif self._slots:
            self._ticks = 0
        elif self._ticks > ticks.idle:
            self._ticks = 0
            self._transport.close()

    def _refuse_slow(self) -> None:
        part = "body" if self._head is not None else "head"
        limit_ms = self._limits.receive_timeout_ms
        self._refuse(
            HttpError(
                408,
                "request_timeout",
                f"the {part} of this request was not complete after {limit_ms / 1000:g} seconds",
            )
        )


_UNREADABLE = Head("", b"", "1.1", False)
