"""Batches that are published exactly once, over HTTP: staged in parts, committed with a number, fenced by the last."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from laneway.access import Access
from laneway.broker.broker import Broker
from laneway.broker.producers import Addressed, ProducerInfo, Target
from laneway.core.message import Draft, Properties
from laneway.core.settings import RANGES
from laneway.errors import Forbidden, InvalidInput
from laneway.frontends.http.errors import HttpError
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.admin import read_body
from laneway.frontends.rest.answers import (
    CommittedAnswer,
    ProducerAnswer,
    ProducersAnswer,
    StagedAnswer,
    StagedTotals,
    encode,
)
from laneway.frontends.rest.errors import InvalidRequest, invalid_json
from laneway.frontends.rest.plan import Plan
from laneway.frontends.rest.publishing import BYTES_TYPE, Attributes, ShortText, Text, attribute_values
from laneway.frontends.rest.routing import DEFAULT_VHOST, Reply, Route
from laneway.frontends.rest.wire import check_names_once, decoder
from laneway.frontends.rest.words import exchange_of, milliseconds, name_of
from laneway.frontends.rest.writing import Writer

MSGPACK_TYPES = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")
_LABEL = r"^[A-Za-z0-9._-]{1,128}$"
_is_label = re.compile(_LABEL).fullmatch
_MAX_DIGITS = 19  # of a batch's number


class StagedMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False, omit_defaults=True):
    """A message of a batch: for a queue, or through an exchange. In JSON its body is base64, in MessagePack bytes."""

    queue: Annotated[str, Meta(min_length=1)] | None = None
    exchange: ShortText | None = None
    routing_key: ShortText = ""
    vhost: str = DEFAULT_VHOST
    body: bytes
    content_type: Text | None = None
    priority: Annotated[int, Meta(ge=0, le=255)] | None = None
    delay_seconds: Annotated[float, Meta(ge=0, le=900)] | None = None
    ttl_seconds: Annotated[float, Meta(gt=0, le=RANGES["message_ttl_ms"][1] / 1000)] | None = None
    attributes: Attributes | None = None
    correlation_id: Text | None = None
    group: Text | None = None
    key: Text | None = None
    tenant: Text | None = None
    dedup_id: Text | None = None


class CommitRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The parts that make up a batch, in the order in which their messages are published."""

    stage: Annotated[str, Meta(pattern=_LABEL)] = "-"
    parts: Annotated[list[str], Meta(max_length=100_000)] = []
    temporary: Annotated[
        bool, Meta(description="no other batch will come from this producer: it is forgotten after a day")
    ] = False
    mandatory: Annotated[bool, Meta(description="publish nothing if a message would reach no queue")] = False


#: A part is decoded and checked in one go, and nobody else is served meanwhile.
StagedPart = Annotated[list[StagedMessage], Meta(max_length=20_000)]

_decode_json = decoder(StagedPart)
_msgpack_decoder = msgspec.msgpack.Decoder(StagedPart)


def decode_staged(body: bytes, *, is_json: bool) -> list[StagedMessage]:
    if is_json:
        decoded: list[StagedMessage] = _decode_json(body)
        check_names_once(body)
        return decoded
    try:
        return _msgpack_decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid_json(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is no valid MessagePack: {error}") from None


def addressed(messages: Sequence[StagedMessage]) -> list[Addressed]:
    made: list[Addressed] = []
    known: tuple[object, ...] = ()
    properties = Properties()
    for place, m in enumerate(messages):
        if (m.queue is None) == (m.exchange is None):
            raise InvalidRequest("a message goes to a queue or through an exchange", field=f"[{place}].queue")
        try:
            look = (m.content_type, m.group, m.key, m.tenant, m.dedup_id, m.correlation_id, m.attributes)
            if look != known:  # look-alikes share their properties, which are then encoded once
                properties, known = _properties(m), look
            draft = Draft(
                m.body,
                m.priority,
                properties,
                None if m.delay_seconds is None else milliseconds(m.delay_seconds, "delay_seconds"),
                None,
                None if m.ttl_seconds is None else milliseconds(m.ttl_seconds, "ttl_seconds") or 1,
            )
        except InvalidInput as error:
            raise InvalidRequest(error.message, field=f"[{place}].{error.field}") from None
        made.append(Addressed(m.vhost, m.queue, exchange_of(m.exchange or ""), m.routing_key, draft))
    return made


def _properties(m: StagedMessage) -> Properties:
    return Properties(
        BYTES_TYPE if m.content_type is None else m.content_type,
        m.group or "",
        m.key or "",
        m.tenant or "",
        m.dedup_id or "",
        m.correlation_id or "",
        attributes=attribute_values(m.attributes) if m.attributes else {},
    )


def targets_of(messages: Sequence[Addressed]) -> set[Target]:
    return {
        (m.vhost, "queue", m.queue) if m.queue is not None else (m.vhost, "exchange", name_of(m.exchange))
        for m in messages
    }


class Producers:
    def __init__(self, broker: Broker, access: Access, writer: Writer) -> None:
        self._broker = broker
        self._access = access
        self._writer = writer
        self._decode_commit = decoder(CommitRequest)

    def _check_owner(self, call: Call, producer: str, stage: str = "") -> None:
        """Whoever could commit under another's name could fence it out."""
        owner = self._broker.producers.owner(producer, stage)
        if owner not in (None, call.account.name) and not self._is_admin(call):
            raise Forbidden(f"producer {producer!r} is another account's", field="producer")

    def _is_admin(self, call: Call) -> bool:
        try:
            self._access.check_admin(call.account)
        except Forbidden:
            return False
        return True

    def _check_targets(self, call: Call, targets: Iterable[Target]) -> None:
        for vhost, noun, name in sorted(targets):
            self._access.check(call.account, vhost, name, "write", noun=noun)

    async def stage(self, call: Call) -> Reply:
        plan: Plan = call.head.plan
        producer, stage, part = plan.names["producer"], plan.names["stage"], plan.names["part"]
        for field, label in (("stage", stage), ("part", part)):
            if not _is_label(label):
                raise InvalidInput(
                    f"the name of a {field} is 1 to 128 letters, digits, dots, hyphens, underscores: {label[:80]!r}",
                    field=field,
                )
        self._check_owner(call, producer, stage)
        messages = addressed(decode_staged(call.body, is_json=_is_json(plan)))
        if not messages:
            raise InvalidInput("a part has at least one message; leave out the part that would have none")
        targets = targets_of(messages)
        self._check_targets(call, targets)
        size = await self._broker.producers.stage(
            producer, stage, part, messages, list(targets), owner=call.account.name
        )
        return Reply(201, encode(StagedAnswer(messages=len(messages), bytes=size)))

    async def give_up(self, call: Call) -> Reply:
        names = call.head.plan.names
        self._check_owner(call, names["producer"], names["stage"])
        self._broker.producers.give_up(names["producer"], names["stage"])
        return Reply(204)

    async def commit(self, call: Call) -> Reply:
        names = call.head.plan.names
        producer, batch = names["producer"], _batch_of(names["batch"])
        body: CommitRequest = read_body(call, self._decode_commit, CommitRequest())
        self._check_owner(call, producer, body.stage)
        done = await self._broker.producers.commit(
            producer,
            batch,
            body.stage,
            body.parts,
            call.account.name,
            temporary=body.temporary,
            mandatory=body.mandatory,
            may=partial(self._check_targets, call),
        )
        return Reply(
            200,
            encode(CommittedAnswer(producer, batch, done.published, done.unrouted, done.duplicates, done.already)),
        )

    async def get_producer(self, call: Call) -> Reply:
        info = self._broker.producers.info(call.head.plan.names["producer"])
        if info.owner != call.account.name:
            self._access.check_admin(call.account)
        return Reply(200, encode(self._answer(info)))

    async def list_producers(self, call: Call) -> Reply:
        """One's own; an admin sees all."""
        is_admin = self._is_admin(call)
        seen = [info for info in self._broker.producers.list() if is_admin or info.owner == call.account.name]
        return Reply(200, encode(ProducersAnswer(producers=[self._answer(info) for info in seen])))

    async def delete_producer(self, call: Call) -> Reply:
        producer = call.head.plan.names["producer"]
        self._check_owner(call, producer)
        await self._broker.producers.forget(producer)
        return Reply(204)

    def _answer(self, info: ProducerInfo) -> ProducerAnswer:
        return ProducerAnswer(
            info.name,
            info.owner,
            info.last_batch,
            self._writer.times.text_or_none(info.committed_at_ms),
            StagedTotals(info.staged_parts, info.staged_messages, info.staged_bytes),
        )


def _is_json(plan: Plan) -> bool:
    if plan.is_json:
        return True
    if plan.content_type.partition(";")[0].strip().lower() not in MSGPACK_TYPES:
        raise HttpError(
            415,
            "unsupported_media_type",
            f"the body is {plan.content_type[:80]!r}, {MSGPACK_TYPES[0]} or application/json is expected",
            field="Content-Type",
        )
    return False


def _batch_of(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise InvalidInput(f"a batch is a number from 0 on, not {text[:80]!r}", field="batch")
    return int(text)


def producer_routes(producers: Producers) -> list[Route]:
    return [
        Route(
            method="PUT",
            pattern="/producers/{producer}/stages/{stage}/parts/{part}",
            name="stage_part",
            summary="Stage messages of a batch: checked and kept, not published yet",
            slow=producers.stage,
            request=StagedPart,
            takes_msgpack=True,
            answers={201: StagedAnswer},
            refusals=(404, 409, 429, 507),
        ),
        Route(
            method="DELETE",
            pattern="/producers/{producer}/stages/{stage}",
            name="give_up_stage",
            summary="Forget what is staged",
            slow=producers.give_up,
            answers={204: None},
        ),
        Route(
            method="POST",
            pattern="/producers/{producer}/batches/{batch}/commit",
            name="commit_batch",
            summary="Publish staged parts as one batch, once, however often it is asked for",
            slow=producers.commit,
            request=CommitRequest,
            body_optional=True,
            answers={200: CommittedAnswer},
            refusals=(404, 409, 429, 507),
        ),
        Route(
            method="GET",
            pattern="/producers",
            name="list_producers",
            summary="The producers of this account, or all of them for an admin",
            slow=producers.list_producers,
            answers={200: ProducersAnswer},
        ),
        Route(
            method="GET",
            pattern="/producers/{producer}",
            name="get_producer",
            summary="The last batch that a producer has committed, and what it has staged",
            slow=producers.get_producer,
            answers={200: ProducerAnswer},
            refusals=(404,),
        ),
        Route(
            method="DELETE",
            pattern="/producers/{producer}",
            name="delete_producer",
            summary="Forget a producer's last batch: it may begin again with any number",
            slow=producers.delete_producer,
            answers={204: None},
            refusals=(404,),
        ),
    ]
