"""Batches that are published exactly once: staged in parts, then published in one commit of the journal together with
a fence that remembers the producer's last batch.

A producer numbers its batches, upwards. Committing the last one again does nothing and says so; an older one is
refused. As the messages and the fence are one commit, there is no moment at which one could be there without the
other: whoever does not know whether a commit went through asks for it again, with the same number.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from laneway.broker.exchanges import fitting
from laneway.broker.staging import Stage, Staging
from laneway.broker.values import Addressed, BatchOutcome, ProducerInfo, StageInfo, StagingLimits, Target
from laneway.core.batches import Share, check_shares, of_message, parcels, publish_shares, share_of
from laneway.core.commands import find_known
from laneway.core.events import DocumentPut, DocumentRemoved, Event
from laneway.core.message import Draft, Receipt
from laneway.core.world import KnownQueue
from laneway.errors import (
    BatchFenced,
    BatchTooLarge,
    InvalidInput,
    LanewayError,
    LimitExceeded,
    OutcomeUnknown,
    PartsMissing,
    ProducerNotFound,
    Unroutable,
)

if TYPE_CHECKING:
    from laneway.broker.partition import Partition

COLLECTION = "producers"
MAX_NAME_BYTES = 255
MAX_BATCH_NUMBER = (1 << 63) - 1
MAX_PRODUCERS = 100_000
MAX_COMMIT_BYTES = 1 << 30  # of one batch in the journal, when exchanges have made several messages of one
TEMPORARY_MS = 24 * 3_600_000  # how long the fence of a producer that will not come back is kept


class Fence(msgspec.Struct, frozen=True):
    """The last committed batch of a producer, as it is kept in the journal."""

    owner: str  # the account that commits under this name
    batch: int
    at_ms: int
    published: int
    unrouted: int = 0
    duplicates: int = 0
    temporary: bool = False


class _Shares(NamedTuple):
    own: list[Share]
    elsewhere: list[Share]  # of queues in other partitions
    unrouted: list[int]


class Producers:
    def __init__(self, partition: Partition, folder: Path | None, limits: StagingLimits) -> None:
        self._partition = partition
        self._staging = Staging(folder, limits)
        self._fences: dict[str, Fence] = {}
        self._temporary: dict[str, int] = {}  # which of them go when, soonest first
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._staging.start()
        for name, document in self._partition.documents(COLLECTION).items():
            self._fences[name] = msgspec.json.decode(document, type=Fence)
        passing = [(fence.at_ms + TEMPORARY_MS, name) for name, fence in self._fences.items() if fence.temporary]
        self._temporary = {name: at_ms for at_ms, name in sorted(passing)}

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # Staging

    async def stage(
        self, producer: str, stage: str, part: str, messages: Sequence[Addressed], targets: Sequence[Target], owner: str
    ) -> int:
        """Keep a part of a batch until it is committed; its size. What could not be published is refused now, so that
        whoever made it hears of it, and not only whoever commits it."""
        partition = self._partition
        partition.begin_change(adds=True)
        partition.check_memory()
        check_producer_name(producer)
        partition.check_free(sum([len(message.draft.body) for message in messages]))
        self._tidy()
        shares = self._shares(messages)
        check_shares(partition.engine.state, [*shares.own, *shares.elsewhere], partition.now())
        kept = await self._staging.put((producer, stage), part, messages, targets, owner, partition.clock.uptime_ms())
        self._plan_tidying()
        return kept.byte_count

    def give_up(self, producer: str, stage: str) -> bool:
        """Forget what is staged; whether there was something."""
        return self._staging.drop((producer, stage))

    def describe_stage(self, producer: str, stage: str, parts: Sequence[str]) -> StageInfo:
        """Whose a stage is, and where the messages of these parts go."""
        named = self._staging.named((producer, stage), parts) if parts else []
        return StageInfo(self._owner(producer, stage), set().union(*(part.targets for part in named)))

    # Committing

    async def commit(
        self,
        producer: str,
        batch: int,
        stage: str,
        parts: Sequence[str],
        owner: str,
        *,
        temporary: bool = False,
        mandatory: bool = False,
    ) -> BatchOutcome:
        """Publish these parts in this order and raise the fence, in one commit; return when it is durable.

        A temporary producer is one that commits a single batch and will not come back: its fence goes after a day. A
        mandatory batch is refused if one of its messages reaches no queue."""
        partition = self._partition
        partition.begin_change(adds=True)
        check_producer_name(producer)
        if not 0 <= batch <= MAX_BATCH_NUMBER:
            raise InvalidInput(f"a batch has a number from 0 to {MAX_BATCH_NUMBER}, not {batch}", field="batch")
        if len(set(parts)) != len(parts):
            raise InvalidInput("a part is named twice", field="parts")
        self._tidy()
        answers: list[asyncio.Future[Any]] = []
        done = self._done_before(producer, batch)
        if done is None:
            messages = await self._staging.read(self._staging.named((producer, stage), parts))
            partition.begin_change(adds=True)
            done = self._done_before(producer, batch)  # meanwhile, by somebody else
        if done is None:
            if parts and self._staging.find((producer, stage)) is None:
                raise PartsMissing("the stage was committed or given up meanwhile", field="stage")
            done = self._publish(producer, batch, messages, owner, answers, temporary=temporary, mandatory=mandatory)
        self._staging.drop((producer, stage))
        await partition.durable()
        for answer in await asyncio.gather(*answers):
            if isinstance(answer, OutcomeUnknown):
                raise answer
        return done

    def _done_before(self, producer: str, batch: int) -> BatchOutcome | None:
        fence = self._fences.get(producer)
        if fence is None or batch > fence.batch:
            return None
        if batch < fence.batch:
            raise BatchFenced(
                f"producer {producer!r} has committed batch {fence.batch} already, so batch {batch} comes too late; "
                "a writer that begins again from the start needs another producer name",
                field="batch",
                last_batch=fence.batch,
            )
        return BatchOutcome(batch, fence.published, fence.unrouted, fence.duplicates, already=True)

    def _publish(
        self,
        producer: str,
        batch: int,
        messages: Sequence[Addressed],
        owner: str,
        answers: builtins.list[asyncio.Future[Any]],
        *,
        temporary: bool,
        mandatory: bool,
    ) -> BatchOutcome:
        """`answers`: of other partitions, to be waited for."""
        if producer not in self._fences and len(self._fences) >= MAX_PRODUCERS:
            raise LimitExceeded(f"{MAX_PRODUCERS} producers are remembered already; delete some", field="producer")
        if not messages and producer not in self._fences:
            return BatchOutcome(batch, 0, 0, 0)  # nothing was ever published that a fence would have to guard
        shares = self._shares(messages)
        if shares.unrouted and mandatory:
            raise _unroutable(messages, shares.unrouted)
        results: list[Receipt | LanewayError] = []
        state, now_ms = self._partition.engine.state, self._partition.now()
        check_shares(state, shares.elsewhere, now_ms)
        sent = list(parcels(shares.elsewhere))
        sent_bytes = sum(sum(map(len, parcel.bodies)) + sum(map(len, parcel.props)) for _, parcel in sent)
        sent_count = sum(len(share.drafts) for share in shares.elsewhere)

        def commit() -> Iterator[Event]:
            yield from publish_shares(
                state, shares.own, now_ms, results, lambda own_bytes: self._check_bytes(own_bytes + sent_bytes)
            )
            for receiver, parcel in sent:
                answers.append(asyncio.get_running_loop().create_future())
                yield from self._partition.crossing.enclose(receiver, parcel, partial(_resolve, answers[-1]))
            duplicates = sum(1 for result in results if isinstance(result, Receipt) and result.duplicate)
            known = self._fences.get(producer)
            whose = owner if known is None else known.owner
            published = len(results) - duplicates + sent_count
            fence = Fence(whose, batch, now_ms, published, len(shares.unrouted), duplicates, temporary)
            yield DocumentPut(now_ms, COLLECTION, producer, msgspec.json.encode(fence))
            self._fences[producer] = fence

        self._partition.run_now(commit())
        fence = self._fences[producer]
        self._temporary.pop(producer, None)
        if temporary:
            self._temporary[producer] = now_ms + TEMPORARY_MS
        return BatchOutcome(batch, fence.published, fence.unrouted, fence.duplicates)

    def _check_bytes(self, total_bytes: int) -> None:
        if total_bytes > MAX_COMMIT_BYTES:
            raise BatchTooLarge(
                f"the batch would take {total_bytes} bytes of the journal, {MAX_COMMIT_BYTES} are allowed"
            )
        self._partition.check_memory()
        self._partition.check_writable(total_bytes)

    def _shares(self, messages: Sequence[Addressed]) -> _Shares:
        """What each queue gets, and which messages reach none."""
        partition, state = self._partition, self._partition.engine.state
        shares: dict[int, Share] = {}
        unrouted: builtins.list[int] = []
        drafts: builtins.list[tuple[KnownQueue, Draft]]
        for place, message in enumerate(messages):
            try:
                if message.queue is not None:
                    drafts = [(find_known(state, message.vhost, message.queue), message.draft)]
                else:
                    queues, draft = partition.exchanges.targets(
                        message.vhost, message.exchange, message.routing_key, message.draft
                    )
                    drafts = [(queue, fitting(draft, queue)) for queue in queues]
                    if not queues:
                        unrouted.append(place)
            except LanewayError as error:
                raise of_message(place, error) from None
            for queue, each in drafts:
                share = shares.get(queue.number)
                if share is None:
                    share = shares[queue.number] = share_of(state, queue)
                share.drafts.append(each)
                share.places.append(place)
        own = state.partition
        return _Shares(
            [share for share in shares.values() if share.partition == own],
            [share for share in shares.values() if share.partition != own],
            unrouted,
        )

    # Looking and forgetting

    def _owner(self, producer: str, stage: str = "") -> str | None:
        """Whose it is: the account that committed under this name, or staged there."""
        fence = self._fences.get(producer)
        if fence is not None:
            return fence.owner
        found = self._staging.find((producer, stage))
        return None if found is None else found.owner

    def info(self, producer: str) -> ProducerInfo:
        self._tidy()
        fence, stages = self._fences.get(producer), self._staging.of_producer(producer)
        if fence is None and not stages:
            raise ProducerNotFound(
                f"producer {producer!r} has neither committed nor staged anything", field="producer", producer=producer
            )
        return _info(producer, fence, stages)

    def list(self) -> builtins.list[ProducerInfo]:
        """Those that have committed something, by name."""
        self._tidy()
        return [_info(name, self._fences[name], self._staging.of_producer(name)) for name in sorted(self._fences)]

    async def forget(self, producer: str) -> None:
        """Delete the fence of a producer, so that it may begin again with any batch."""
        self._partition.begin_change(adds=False)
        self.info(producer)
        if self._fences.pop(producer, None) is not None:
            self._temporary.pop(producer, None)
            self._partition.run_now(iter([DocumentRemoved(self._partition.now(), COLLECTION, producer)]))
        await self._partition.durable()

    def _tidy(self) -> None:
        """Drop what is staged for too long and the fences whose time has come."""
        now_ms = self._partition.now()
        self._staging.drop_idle(self._partition.clock.uptime_ms())
        gone: builtins.list[str] = []
        for name, at_ms in self._temporary.items():
            if at_ms > now_ms:
                break
            gone.append(name)
        for name in gone:
            del self._temporary[name], self._fences[name]
        if gone:
            self._partition.run_now(iter([DocumentRemoved(now_ms, COLLECTION, name) for name in gone]))

    def clock_jumped(self, by_ms: int) -> None:
        """Fences keep what was left of their time."""
        self._temporary = {name: at_ms + by_ms for name, at_ms in self._temporary.items()}

    def _plan_tidying(self) -> None:
        """Staged parts go in time also when no request comes any more."""
        if self._timer is None:
            due_ms = self._staging.drop_idle(self._partition.clock.uptime_ms())
            if due_ms is not None:
                self._timer = self._partition.call_later(due_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._plan_tidying()


def _resolve(future: asyncio.Future[Any], answer: Any) -> None:
    if not future.done():
        future.set_result(answer)


def _unroutable(messages: Sequence[Addressed], places: Sequence[int]) -> Unroutable:
    first = messages[places[0]]
    return Unroutable(
        f"{len(places)} of {len(messages)} messages reach no queue, and nothing was published; the first is message "
        f"{places[0]}, through exchange {first.exchange!r} with routing key {first.routing_key!r}",
        field="exchange",
        unrouted=len(places),
    )


def _info(name: str, fence: Fence | None, stages: Sequence[Stage]) -> ProducerInfo:
    parts = [part for stage in stages for part in stage.parts.values()]
    return ProducerInfo(
        name,
        fence.owner if fence is not None else stages[0].owner,
        fence.batch if fence is not None else None,
        fence.at_ms if fence is not None else None,
        len(parts),
        sum(part.message_count for part in parts),
        sum(part.byte_count for part in parts),
    )


def check_producer_name(name: str) -> None:
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= MAX_NAME_BYTES:
        raise InvalidInput(f"the name of a producer has 1 to {MAX_NAME_BYTES} bytes, not {size}", field="producer")
    if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) <= 0xDFFF for c in name):
        raise InvalidInput(f"the name of a producer has no control characters: {name!r}", field="producer")
