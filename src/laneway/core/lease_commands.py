"""Commands about leases: leasing, settling, extending, giving back. commands.py says what a command is.

A lease is named by its number and by the message's, together a token (digits.py); an ack with one that is not of this
very delivery is refused.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, compress, pairwise, repeat, starmap
from operator import itemgetter
from typing import cast

from laneway.core.burial import bury, shed
from laneway.core.deadlines import coarse
from laneway.core.digits import LEASE_DIGITS, SEQ_MASK, SESSION_LEASE, TOKEN_CHARS, Tokens
from laneway.core.events import (
    Acked,
    Cause,
    Event,
    Extended,
    Leased,
    Released,
    Reserved,
)
from laneway.core.message import Settlement
from laneway.core.queue import Queue
from laneway.core.runs import Seqs, as_array, joined, runs
from laneway.core.settings import RANGES, SECOND_MS
from laneway.core.state import State
from laneway.core.table import DELAYED, LEASED, OVERDUE, READY, SLAB_BITS, SLAB_MASK
from laneway.errors import (
    InvalidInput,
    LanewayError,
    LeaseStale,
    ReceiptInvalid,
)

MAX_LEASE_MS = RANGES["lease_ms"][1]
#: Deliveries of one lease hold at most so many bytes, unless a single message is larger.
MAX_LEASE_BYTES = 16 * 1024 * 1024
MAX_BACKOFF_MS = 900 * SECOND_MS
MAX_REASON_BYTES = 1024
MAX_CONSUMER_BYTES = 256
_HELD = (LEASED,)
_HELD_OR_BACK = (LEASED, READY, DELAYED)


def lease(
    state: State,
    demands: Sequence[tuple[Queue, int]],
    lease_ms: int | None,
    consumer: str,
    now_ms: int,
    *,
    of_session: bool = False,
    first_lease: int | None = None,
    below: int = 0,
) -> Iterator[Leased]:
    """Lease so many messages of each queue at most, as one event; `lease_ms`: None for the usual time of the first.

    `of_session`: whoever gets them is a connection that gives back what it did not settle when it ends, at the
    latest when the store is opened again. Its deadlines are far away and rounded, so that many share one.
    `first_lease`: the first lease id, if it is a secret one; they are counted otherwise. `below`: as in
    Queue.select."""
    if lease_ms is None:
        lease_ms = demands[0][0].settings.lease_ms
    deadline_ms = now_ms + lease_ms
    if first_lease is None:
        first_lease = state.next_lease
    if of_session:
        deadline_ms, first_lease = coarse(deadline_ms, now_ms), first_lease | SESSION_LEASE
    table = state.table
    selected = [(queue, some) for queue, limit in demands if (some := queue.select(limit, table, below))]
    if selected:
        seqs = joined([some for _, some in selected])
        if type(seqs) is list:
            seqs = Seqs(seqs)
        slabs = state.table.slabs
        neighbours = [(slabs[first >> SLAB_BITS], first & SLAB_MASK, count) for first, count in runs(seqs)]
        total_bytes = sum([sum(slab.size[i : i + count]) for slab, i, count in neighbours])
        receives: list[int] = []
        for slab, i, count in neighbours:
            before = slab.receives[i : i + count]
            receives += [n + 1 for n in before] if any(before) else [1] * count
        if total_bytes > MAX_LEASE_BYTES:
            selected = _cut(state, selected)
            seqs = joined([some for _, some in selected])
            receives = receives[: len(seqs)]
        queues = [(queue.number, len(some)) for queue, some in selected] if len(selected) > 1 else ()
        number = selected[0][0].number
        try:
            yield Leased(number, now_ms, seqs, receives, first_lease, deadline_ms, consumer, queues=queues)
        except GeneratorExit:  # the journal did not take it: they are next again
            for queue, some in selected:
                queue.unselect(some, table)
            raise


def _cut(state: State, selected: list[tuple[Queue, Sequence[int]]]) -> list[tuple[Queue, Sequence[int]]]:
    """As many of the first as may go out at once, and at least one; the others are next again."""
    kept: list[tuple[Queue, Sequence[int]]] = []
    total = 0
    for queue, seqs in selected:
        for at, seq in enumerate(seqs):
            total += state.table.slabs[seq >> SLAB_BITS].size[seq & SLAB_MASK]
            if total > MAX_LEASE_BYTES and (at or kept):
                break
        else:
            kept.append((queue, seqs))
            continue
        queue.unselect(seqs[at:], state.table)
        if at:
            kept.append((queue, seqs[:at]))
    return kept


def check_lease(lease_ms: int | None, consumer: str) -> None:
    if lease_ms is not None and not 0 <= lease_ms <= MAX_LEASE_MS:
        raise InvalidInput(
            f"a lease is from 0 to {MAX_LEASE_MS // 1000} seconds, not {lease_ms / 1000:g}", field="lease_ms"
        )
    if len(consumer.encode()) > MAX_CONSUMER_BYTES:
        raise InvalidInput(f"a consumer's name has at most {MAX_CONSUMER_BYTES} bytes", field="consumer")


class _Settling:
    """What a batch of settlements adds up to, gathered per kind so that each kind becomes one event."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.again: list[int] = []  # those whose leases had ended, and go on
        self.acked: list[int] = []
        self.leases: list[int] = []
        self.released: list[int] = []
        self.due_ms: list[int] = []
        self.extended: dict[int, list[int]] = {}
        self.buried: dict[tuple[Cause, str], list[int]] = {}


def settle(
    state: State,
    queue: Queue,
    settlements: Sequence[Settlement],
    now_ms: int,
    results: list[int | LanewayError],
    *,
    came_ms: int | None = None,
) -> Iterator[Event]:
    """`came_ms`: when the first of them came, if that was earlier. A lease that held then is still good."""
    if came_ms is None:
        came_ms = now_ms
    batch = _Settling()
    rest = settlements
    if len(settlements) > 1 and all(s.action == "ack" and s.message_id is None for s in settlements):
        rest = _ack_plain(state, queue, settlements, came_ms, batch)
        results += [0] * len(batch.acked)
    seen = batch.seen
    for s in rest:
        try:
            seq, lease_id, is_held = _held(state, queue, s, came_ms)
            if seq in seen:
                raise LeaseStale("this receipt handle was settled earlier in the same batch", field="token")
            if not (is_held or (s.action == "extend" and s.lease_ms)):
                batch.again.append(seq)
            if s.action == "ack":
                batch.acked.append(seq)
                batch.leases.append(lease_id)
                results.append(0)
            else:
                results.append(_settle_otherwise(state, queue, s, seq, batch, now_ms))
            seen.add(seq)
        except LanewayError as wrong:
            results.append(wrong)
    if batch.again:
        yield Extended(queue.number, now_ms, batch.again, now_ms)
    if batch.acked:
        yield Acked(queue.number, now_ms, batch.acked, batch.leases)
    if batch.released:
        yield Released(queue.number, now_ms, batch.released, batch.due_ms, Cause.RELEASED)
        yield from shed(state, queue, now_ms)
    for deadline_ms, seqs in batch.extended.items():
        yield Extended(queue.number, now_ms, seqs, deadline_ms)
    for (cause, detail), seqs in batch.buried.items():
        yield from bury(state, queue, seqs, cause, detail, now_ms)


_TOKEN = struct.Struct(">QHI")


def parse_tokens(texts: Sequence[str]) -> tuple[list[int], list[int]] | None:
    """(message numbers, lease ids) of many receipt handles at once; None if one of them is none, or comes twice."""
    if set(map(len, texts)) != {TOKEN_CHARS}:
        return None
    try:
        joined = bytes.fromhex("".join(texts))
    except ValueError:
        return None
    if 2 * len(joined) != TOKEN_CHARS * len(texts):  # blanks, which fromhex() passes over
        return None
    leases, highs, lows = zip(*_TOKEN.iter_unpack(joined), strict=True)
    seqs = Seqs(lows if not any(highs) else [high << 32 | low for high, low in zip(highs, lows, strict=True)])
    return (seqs, list(leases)) if len(set(seqs)) == len(seqs) else None


_seq_digits = itemgetter(slice(LEASE_DIGITS, None))


def _first_of(run: tuple[range, range]) -> int:
    return run[0].start


def ack_tokens(
    state: State, queue: Queue, parts: Sequence[Sequence[str]], now_ms: int, *, came_ms: int
) -> Acked | None:
    """The event that acks all tokens of all parts; None if one of them is no token, comes twice, or is not held any
    more. `came_ms` as for settle(). Hot: parts that are runs are never looked at token by token."""
    seqs: Sequence[int]
    leases: Sequence[int]
    if all(type(part) is Tokens for part in parts):
        held = sorted(chain.from_iterable([part.runs for part in cast(Sequence[Tokens], parts)]), key=_first_of)
        if any(one.stop > other.start for (one, _), (other, _) in pairwise(held)):
            return None
        if any(still_held(state, [(queue.number, len(run[0]))], *run) is not None for run in held):
            return None
        seqs, leases = joined([run[0] for run in held]), joined([run[1] for run in held])
    else:
        parsed = parse_tokens(sorted(chain.from_iterable(parts), key=_seq_digits))  # neighbours then stand together
        if parsed is None or still_held(state, [(queue.number, len(parsed[0]))], *parsed) is not None:
            return None
        seqs, leases = parsed
    slabs = state.table.slabs
    for first, count in runs(seqs):
        i = first & SLAB_MASK
        if min(slabs[first >> SLAB_BITS].due_ms[i : i + count]) <= came_ms:
            return None
    return Acked(queue.number, now_ms, seqs, leases)


def settle_held(
    state: State,
    queues: Sequence[tuple[int, int]],
    seqs: Sequence[int],
    leases: Sequence[int],
    action: str,
    now_ms: int,
    lease_ms: int = 0,
) -> Iterator[Event]:
    """Settle by number and lease id what sessions hold, so many messages of each queue: ack them, or release, fail,
    reject or extend those of a single queue. What is no longer held is passed over: the session is not to blame for a
    lease that ran out."""
    if type(seqs) is list:
        seqs = Seqs(seqs)
    held = still_held(state, queues, seqs, leases)
    if held is not None:
        seqs, leases = list(compress(seqs, held)), list(compress(leases, held))
        ends = accumulate([count for _, count in queues], initial=0)
        counts = [(number, sum(held[end : end + count])) for (number, count), end in zip(queues, ends, strict=False)]
        queues = [(number, count) for number, count in counts if count]
    if not seqs:
        return
    queue = state.queues[queues[0][0]]
    if action == "ack":
        yield Acked(queue.number, now_ms, seqs, leases, queues=queues if len(queues) > 1 else ())
    elif action == "extend":
        yield Extended(queue.number, now_ms, seqs, coarse(now_ms + lease_ms, now_ms))
    elif action == "reject":
        yield from bury(state, queue, seqs, Cause.REJECTED, "", now_ms)
    else:
        yield from give_back(state, queue, seqs, Cause.RELEASED, now_ms, failed=action == "fail")


def reserve(
    state: State,
    queue: Queue,
    seqs: Sequence[int],
    leases: Sequence[int],
    lease_ms: int,
    first_lease: int,
    now_ms: int,
    found: list[int],
) -> Iterator[Event]:
    """Keep what a session holds leased under other ids, so that the end of the session gives none of it back. Adds the
    new id of each to `found`, 0 for what is no longer held."""
    held = still_held(state, [(queue.number, len(seqs))], seqs, leases)
    kept = seqs if held is None else list(compress(seqs, held))
    given = dict(zip(kept, range(first_lease, first_lease + len(kept)), strict=True))
    found += [given.pop(seq, 0) for seq in seqs]
    if kept:
        yield Reserved(queue.number, now_ms, kept, first_lease, now_ms + lease_ms)


def hold_again(
    state: State, queue: Queue, tokens: Sequence[str], deadline_ms: int, lease_ms: int | None, now_ms: int
) -> Iterator[Event]:
    """Begin the leases of a delivery anew, under the ids they have, if it is held as it was given: until that
    deadline, and by all of these tokens. Nothing otherwise."""
    parsed = parse_tokens(tokens)
    if (
        parsed is None
        or deadline_ms <= now_ms
        or still_held(state, [(queue.number, len(parsed[0]))], *parsed) is not None
    ):
        return
    slabs = state.table.slabs
    if all(slabs[seq >> SLAB_BITS].due_ms[seq & SLAB_MASK] == deadline_ms for seq in parsed[0]):
        lease_ms = queue.settings.lease_ms if lease_ms is None else lease_ms
        yield Extended(queue.number, now_ms, parsed[0], now_ms + lease_ms)


def still_held(
    state: State, queues: Sequence[tuple[int, int]], seqs: Sequence[int], leases: Sequence[int]
) -> list[bool] | None:
    """Which of these are leased under these ids, so many of each queue; None if all are, which is told at once for
    neighbours."""
    slabs = state.table.slabs
    numbers = array("I", chain.from_iterable(starmap(repeat, queues)))
    done = 0
    for first, count in runs(seqs):
        slab, i = slabs.get(first >> SLAB_BITS), first & SLAB_MASK
        j, here = i + count, slice(done, done + count)
        if (
            slab is None
            or j > len(slab.state)
            or not slab.lease
            or slab.state.count(LEASED, i, j) != count
            or slab.lease[i:j] != as_array(leases[here])
            or slab.queue[i:j] != numbers[here]
        ):
            held = [_is_held(state, *one) for one in zip(numbers, seqs, leases, strict=True)]
            return _once(seqs, held)
        done += count
    if len(runs(seqs)) == 1 or len(set(seqs)) == len(seqs):
        return None
    return _once(seqs, [True] * len(seqs))


def _once(seqs: Sequence[int], held: Sequence[bool]) -> list[bool]:
    """A message that is named twice is settled once."""
    seen: set[int] = set()
    first: list[bool] = []
    for seq, good in zip(seqs, held, strict=True):
        first.append(good and seq not in seen)
        if good:
            seen.add(seq)
    return first


def _is_held(state: State, number: int, seq: int, lease: int) -> bool:
    slab, i = state.table.slabs.get(seq >> SLAB_BITS), seq & SLAB_MASK
    return (
        slab is not None
        and i < len(slab.state)
        and slab.state[i] == LEASED
        and slab.lease[i] == lease
        and slab.queue[i] == number
    )


def give_back(
    state: State, queue: Queue, seqs: Sequence[int], cause: Cause, now_ms: int, *, failed: bool = True
) -> Iterator[Event]:
    """Leased messages back to their places, except those that have no try left. These wait for their burial until it is
    known where they may go: the lease ends, and expires when it is. A queue that is too full then sheds what is first
    to go. `failed`: their consumer could not cope with them, or is gone; else it merely does without them."""
    back: list[int] = []
    due_ms: list[int] = []
    is_delayed = queue.settings.retry_delay_after in ("any", "failure" if failed else "return")
    dead: dict[Cause, list[int]] = {}
    for seq in seqs:
        slab, i = state.table.slabs[seq >> SLAB_BITS], seq & SLAB_MASK
        end = end_of_tries(queue, slab.receives[i], slab.flags[i])
        if end is None:
            back.append(seq)
            due_ms.append(now_ms + retry_delay_ms(queue, slab.receives[i]) if is_delayed else now_ms)
        else:
            dead.setdefault(end, []).append(seq)
    if back:
        yield Released(queue.number, now_ms, back, [0 if ms == now_ms else ms for ms in due_ms], cause)
        yield from shed(state, queue, now_ms)
    for end, group in dead.items():
        if state.world.is_complete:
            yield from bury(state, queue, group, end, "", now_ms)
        else:
            yield Extended(queue.number, now_ms, group, now_ms)


def retry_delay_ms(queue: Queue, receives: int) -> int:
    settings = queue.settings
    if settings.retry_delay_ms is None:
        return 0
    longest_ms = settings.max_retry_delay_ms or RANGES["max_retry_delay_ms"][1]
    return min(settings.retry_delay_ms * receives, longest_ms)


def end_sessions(state: State, now_ms: int) -> Iterator[Event]:
    """The connections of before are gone: what they held goes back to its place."""
    held: dict[int, list[int]] = {}
    for number in sorted(state.table.slabs):
        slab = state.table.slabs[number]
        i = slab.state.find(LEASED) if slab.lease else -1
        while i >= 0:
            if slab.lease[i] & SESSION_LEASE:
                held.setdefault(slab.queue[i], []).append(number << SLAB_BITS | i)
            i = slab.state.find(LEASED, i + 1)
    for number, seqs in held.items():
        yield from give_back(state, state.queues[number], seqs, Cause.RELEASED, now_ms)


def _ack_plain(
    state: State, queue: Queue, settlements: Sequence[Settlement], now_ms: int, batch: _Settling
) -> Sequence[Settlement]:
    """Hot: acks that are in order, up to the first that is not; that one and the rest, to be looked at closely."""
    slabs, number = state.table.slabs, queue.number
    seen, acked, leases = batch.seen, batch.acked, batch.leases
    slab_number, slab = -1, None
    for at, s in enumerate(settlements):
        text = s.token
        try:
            value = int(text, 16)
        except ValueError:
            return settlements[at:]
        seq, lease_id = value & SEQ_MASK, value >> 48
        if seq >> SLAB_BITS != slab_number:
            slab_number = seq >> SLAB_BITS
            slab = slabs.get(slab_number)
            if slab is None or not slab.lease:
                return settlements[at:]
        i = seq & SLAB_MASK
        if (
            slab is None
            or i >= len(slab.state)
            or slab.lease[i] != lease_id
            or slab.state[i] != LEASED
            or slab.due_ms[i] <= now_ms
            or slab.queue[i] != number
            or seq in seen
            or len(text) != TOKEN_CHARS
        ):
            return settlements[at:]
        seen.add(seq)
        acked.append(seq)
        leases.append(lease_id)
    return ()


def _held(state: State, queue: Queue, s: Settlement, now_ms: int) -> tuple[int, int, bool]:
    """(message number, lease id, whether it is leased) of a token whose lease still holds, or may have ended."""
    text = s.token
    try:
        if len(text) != TOKEN_CHARS:
            raise ValueError
        value = int(text, 16)
    except ValueError:
        raise ReceiptInvalid(f"not a receipt handle: {text[:80]!r}", field="token") from None
    seq, lease_id = value & SEQ_MASK, value >> 48
    slab = state.table.slabs.get(seq >> SLAB_BITS)
    i = seq & SLAB_MASK
    if (
        slab is None
        or not slab.lease
        or i >= len(slab.state)
        or slab.lease[i] != lease_id
        or slab.queue[i] != queue.number
        or slab.state[i] not in (_HELD_OR_BACK if s.late else _HELD)
        or (slab.due_ms[i] <= now_ms and not s.late)
    ):
        raise LeaseStale(
            "the lease of this receipt handle has ended: it expired, or the message was settled or delivered again; or "
            "it is another account's",
            field="token",
        )
    if s.message_id is not None:
        told = state.stories.get(seq)
        record_seq = told.record_seq if told else seq
        if len(s.message_id) != 36 or s.message_id[-12:].lower() != f"{record_seq:012x}":
            raise ReceiptInvalid(f"the receipt handle is not of message {s.message_id[:40]!r}", field="token")
    return seq, lease_id, slab.state[i] == LEASED


def _settle_otherwise(state: State, queue: Queue, s: Settlement, seq: int, batch: _Settling, now_ms: int) -> int:
    if s.action == "reject":
        if len(s.reason.encode()) > MAX_REASON_BYTES:
            raise InvalidInput(f"a reason has at most {MAX_REASON_BYTES} bytes", field="reason")
        batch.buried.setdefault((Cause.REJECTED, s.reason), []).append(seq)
        return 0
    if s.action == "extend":
        if s.lease_ms is None:
            raise InvalidInput("say how long the lease shall be", field="lease_ms")
        check_lease(s.lease_ms, "")
        if s.lease_ms > 0:
            deadline_ms = now_ms + s.lease_ms
            batch.extended.setdefault(deadline_ms, []).append(seq)
            return deadline_ms
    slab = state.table.slabs[seq >> SLAB_BITS]
    receives = slab.receives[seq & SLAB_MASK]
    if s.action == "extend":
        delay_ms = 0
    elif s.backoff:
        delay_ms = min(MAX_BACKOFF_MS, SECOND_MS << min(receives, 20))
    elif not s.delay_ms and queue.settings.retry_delay_after != "failure":
        delay_ms = retry_delay_ms(queue, receives)
    elif 0 <= s.delay_ms <= MAX_LEASE_MS:
        delay_ms = s.delay_ms
    else:
        raise InvalidInput(
            f"a delay is from 0 to {MAX_LEASE_MS // 1000} seconds, not {s.delay_ms / 1000:g}", field="delay_ms"
        )
    cause = end_of_tries(queue, receives, slab.flags[seq & SLAB_MASK])
    if cause is not None:
        batch.buried.setdefault((cause, ""), []).append(seq)
        return now_ms
    batch.released.append(seq)
    batch.due_ms.append(now_ms + delay_ms if delay_ms else 0)
    return now_ms + delay_ms


def end_of_tries(queue: Queue, receives: int, flags: int) -> Cause | None:
    """Why a message that comes back from a lease dies instead, if it does."""
    if flags & OVERDUE:
        return Cause.EXPIRED
    limit = queue.settings.max_receives
    return Cause.MAX_RECEIVES if limit is not None and receives >= limit else None
