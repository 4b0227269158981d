"""Batches that are published exactly once, over HTTP: staged in parts, committed with a number, fenced by the last."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from laneway.access import Access
from laneway.broker import interface as i
from laneway.broker.values import Addressed, BatchOutcome, ProducerInfo, StageInfo, Target
from laneway.core.message import Draft, Properties
from laneway.errors import Forbidden, InvalidInput, PartsMissing
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest import answers as a
from laneway.frontends.rest.attributes import Attributes, attribute_values
from laneway.frontends.rest.errors import InvalidRequest, invalid_json, unsupported_media_type
from laneway.frontends.rest.plan import HeadPlan
from laneway.frontends.rest.publishing import (
    BYTES_TYPE,
    DelaySeconds,
    Priority,
    ShortText,
    Text,
    TtlSeconds,
    delay_ms_of,
    ttl_ms_of,
)
from laneway.frontends.rest.routing import DEFAULT_VHOST, LIST_BYTES, ApiRoute, Reply
from laneway.frontends.rest.wire import check_names_once, decoder, read_body
from laneway.frontends.rest.words import exchange_of, name_of
from laneway.frontends.rest.writing import AnswerWriter

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
    priority: Priority | None = None
    delay_seconds: DelaySeconds | None = None
    ttl_seconds: TtlSeconds | None = None
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
                None if m.delay_seconds is None else delay_ms_of(m.delay_seconds),
                None,
                None if m.ttl_seconds is None else ttl_ms_of(m.ttl_seconds),
            )
        except InvalidInput as error:
            raise InvalidRequest(error.message, field=f"[{place}].{error.field}") from None
        made.append(Addressed(m.vhost, m.queue, exchange_of(m.exchange or ""), m.routing_key, draft))
    return made


def _properties(m: StagedMessage) -> Properties:
    """Never PLAIN: that a body is the JSON that its type says has not been checked."""
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


class ProducersApi:
    def __init__(self, broker: i.Broker, access: Access, writer: AnswerWriter) -> None:
        self._broker = broker
        self._access = access
        self._writer = writer

    async def _check_owner(self, call: Call, producer: str, stage: str = "", parts: Sequence[str] = ()) -> StageInfo:
        """Whoever could commit under another's name could fence it out. What the broker knows of these parts."""
        info: StageInfo = await self._broker.ask(i.DescribeStage(producer, stage, parts))
        if info.owner not in (None, call.account.name) and not self._is_admin(call):
            raise Forbidden(f"producer {producer!r} is another account's", field="producer")
        return info

    def _is_admin(self, call: Call) -> bool:
        try:
            self._access.check_admin(call.account)
        except Forbidden:
            return False
        return True

    def _check_targets(self, call: Call, targets: Iterable[Target]) -> None:
        for vhost, noun, name in sorted(targets):
            self._access.check(call.account, vhost, name, "write", noun=noun)

    def _check_topics(self, call: Call, messages: Iterable[Addressed]) -> None:
        topology = self._broker.topology
        for vhost, name, key in {(one.vhost, one.exchange, one.routing_key) for one in messages if one.queue is None}:
            exchange = topology.exchange(vhost, name)
            if exchange is not None and exchange.settings.type == "topic":
                self._access.check_topic(call.account, vhost, name, key, "write")

    @ApiRoute(
        "PUT",
        "/producers/{producer}/stages/{stage}/parts/{part}",
        request=StagedPart,
        max_body_bytes=None,
        takes_msgpack=True,
        answers={201: a.StagedAnswer},
        refusals=(404, 409, 429, 507),
    )
    async def stage_part(self, call: Call) -> Reply:
        """Stage messages of a batch: checked and kept, not published yet."""
        plan: HeadPlan = call.head.plan
        producer, stage, part = plan.names["producer"], plan.names["stage"], plan.names["part"]
        for field, label in (("stage", stage), ("part", part)):
            if not _is_label(label):
                raise InvalidInput(
                    f"the name of a {field} is 1 to 128 letters, digits, dots, hyphens, underscores: {label[:80]!r}",
                    field=field,
                )
        await self._check_owner(call, producer, stage)
        messages = addressed(decode_staged(call.body, is_json=_is_json(plan)))
        if not messages:
            raise InvalidInput("a part has at least one message; leave out the part that would have none")
        targets = targets_of(messages)
        self._check_targets(call, targets)
        self._check_topics(call, messages)
        size = await self._broker.ask(i.StagePart(producer, stage, part, messages, list(targets), call.account.name))
        return Reply(201, a.encode(a.StagedAnswer(messages=len(messages), bytes=size)))

    @ApiRoute("DELETE", "/producers/{producer}/stages/{stage}", answers={204: None})
    async def give_up_stage(self, call: Call) -> Reply:
        """Forget what is staged."""
        names = call.head.plan.names
        await self._check_owner(call, names["producer"], names["stage"])
        await self._broker.ask(i.GiveUpStage(names["producer"], names["stage"]))
        return Reply(204)

    @ApiRoute(
        "POST",
        "/producers/{producer}/batches/{batch}/commit",
        request=CommitRequest,
        max_body_bytes=LIST_BYTES,
        body_optional=True,
        answers={200: a.CommittedAnswer},
        refusals=(404, 409, 429, 507),
    )
    async def commit_batch(self, call: Call) -> Reply:
        """Publish staged parts as one batch, once, however often it is asked for."""
        names = call.head.plan.names
        producer, batch = names["producer"], _batch_of(names["batch"])
        body = read_body(call.body, CommitRequest)
        try:
            info = await self._check_owner(call, producer, body.stage, body.parts)
        except PartsMissing:  # perhaps because the batch was committed before: the commit knows
            info = await self._check_owner(call, producer, body.stage)
        self._check_targets(call, info.targets)
        owner = call.account.name
        done: BatchOutcome = await self._broker.ask(
            i.CommitBatch(producer, batch, body.stage, body.parts, owner, body.temporary, body.mandatory)
        )
        answer = a.CommittedAnswer(producer, batch, done.published, done.unrouted, done.duplicates, done.already)
        return Reply(200, a.encode(answer))

    @ApiRoute("GET", "/producers", answers={200: a.ProducersAnswer})
    async def list_producers(self, call: Call) -> Reply:
        """The producers of this account, or all of them for an admin."""
        is_admin = self._is_admin(call)
        found: list[ProducerInfo] = await self._broker.ask(i.ListProducers())
        seen = [info for info in found if is_admin or info.owner == call.account.name]
        return Reply(200, a.encode(a.ProducersAnswer(producers=[self._answer(info) for info in seen])))

    @ApiRoute("GET", "/producers/{producer}", answers={200: a.ProducerAnswer}, refusals=(404,))
    async def get_producer(self, call: Call) -> Reply:
        """The last batch that a producer has committed, and what it has staged."""
        info: ProducerInfo = await self._broker.ask(i.DescribeProducer(call.head.plan.names["producer"]))
        if info.owner != call.account.name:
            self._access.check_admin(call.account)
        return Reply(200, a.encode(self._answer(info)))

    @ApiRoute("DELETE", "/producers/{producer}", answers={204: None}, refusals=(404,))
    async def delete_producer(self, call: Call) -> Reply:
        """Forget a producer's last batch: it may begin again with any number."""
        producer = call.head.plan.names["producer"]
        await self._check_owner(call, producer)
        await self._broker.ask(i.ForgetProducer(producer))
        return Reply(204)

    def _answer(self, info: ProducerInfo) -> a.ProducerAnswer:
        return a.ProducerAnswer(
            info.name,
            info.owner,
            info.last_batch,
            self._writer.times.text_or_none(info.committed_at_ms),
            a.StagedTotals(info.staged_parts, info.staged_messages, info.staged_bytes),
        )


def _is_json(plan: HeadPlan) -> bool:
    if plan.is_json:
        return True
    if plan.content_type.partition(";")[0].strip().lower() not in MSGPACK_TYPES:
        raise unsupported_media_type(plan.content_type, f"{MSGPACK_TYPES[0]} or application/json")
    return False


def _batch_of(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise InvalidInput(f"a batch is a number from 0 on, not {text[:80]!r}", field="batch")
    return int(text)
