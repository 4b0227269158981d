"""Policies: what operators say of queues by patterns of their names, over what each was declared with.

Of the policies of a virtual host that match a queue's name the one of the highest priority counts, and of operator
policies one more. Each partition looks after its own queues: it gives a new one its policies as it is made, and when
policies change it goes through all it has, in slices. What a queue was declared with is kept beneath, so that it has
that again when the policy goes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.broker.arguments import settings_from_policy
from laneway.broker.values import POLICIES, Policy
from laneway.core import commands
from laneway.core.events import DocumentPut, DocumentRemoved, Event
from laneway.core.settings import QueueSettings, declared
from laneway.errors import LanewayError
from laneway.regexes import Regex, compile_regex

if TYPE_CHECKING:
    from laneway.broker.partition import Partition

log = logging.getLogger("laneway.policies")

_SLICE = 100  # queues, before others get their turn

#: Of these the lower value counts, whoever says it: whoever declared a queue cannot get around a policy's limit.
_LOWER_COUNTS = frozenset({"message_ttl_ms", "expires_ms", "max_messages", "max_bytes", "max_receives"})
#: Of the others what was declared counts, if it was.
_DECLARED_BY = {
    "overflow": "x-overflow",
    "dead_letter_exchange": "x-dead-letter-exchange",
    "dead_letter_routing_key": "x-dead-letter-routing-key",
    "lease_ms": "x-consumer-timeout",
}


class _Rule(msgspec.Struct, frozen=True):
    name: str
    regex: Regex
    settings: dict[str, Any]
    is_for: Callable[[QueueSettings], bool]


def _rule(policy: Policy) -> _Rule:
    wanted = {"classic_queues": "classic", "quorum_queues": "quorum"}.get(policy.apply_to)

    def is_for(settings: QueueSettings) -> bool:
        if policy.apply_to in ("exchanges", "streams"):
            return False
        return wanted in (None, settings.arguments.get("x-queue-type", "classic"))

    return _Rule(
        policy.name,
        compile_regex(policy.pattern, field="pattern"),
        settings_from_policy(policy.definition),
        is_for,
    )


class Policies:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._rules: dict[tuple[str, str], list[_Rule]] | None = None  # by kind and virtual host, the first that fits
        self._is_sweeping = self._must_sweep = False

    def start(self) -> None:
        """Of a server with one partition; where there are several, a follower tells of policies' changes."""
        state = self._partition.engine.state
        if state.world is state:
            state.follow(self._followed)
        self.changed()

    def _followed(self, change: Event) -> None:
        if isinstance(change, DocumentPut | DocumentRemoved):
            self.document(change.collection, change.key, None)

    def document(self, collection: str, key: str, document: bytes | None) -> None:
        """A document of any collection was put or removed."""
        if collection == POLICIES:
            self.changed()

    def changed(self) -> None:
        self._rules = None
        self._must_sweep = True
        if not self._is_sweeping:
            self._is_sweeping = True
            # Documents change amid other work: what queues are to be follows in a turn of its own.
            self._partition.next_turn(lambda: self._partition.in_slices(self._sweep(), lambda _: None))

    def _sweep(self) -> Generator[None, None, None]:
        partition = self._partition
        try:
            # What is not known yet must not be taken for what is not there: who follows tells when it is.
            while self._must_sweep and partition.engine.state.world.is_complete:
                self._must_sweep = False
                for at, (vhost, name) in enumerate(list(partition.queues.names)):
                    if at % _SLICE == _SLICE - 1:
                        yield
                    if self._must_sweep:
                        break
                    self.renew(vhost, name)
        finally:
            self._is_sweeping = False

    def renew(self, vhost: str, name: str) -> None:
        """Give a queue what its policies say now."""
        partition = self._partition
        queue = partition.engine.state.by_name.get((vhost, name))
        if queue is None or queue.number in partition.queues.going:
            return
        settings = self.over(vhost, name, queue.settings)
        if settings == queue.settings:
            return
        try:
            partition.begin_change(adds=True)
            most = partition.limits.max_queues
            state, now_ms = partition.engine.state, partition.now()
            partition.engine.run(commands.put_queue(state, vhost, name, settings, now_ms, max_queues=most))
        except LanewayError as refusal:
            log.warning("queue %r of virtual host %r cannot be given its policy: %s", name, vhost, refusal.message)
            return
        partition.committer.touch_later()
        partition.serve((queue.number,))
        partition.sessions.used(queue)
        partition.set_timer()

    # --- what they say

    def over(self, vhost: str, name: str, settings: QueueSettings) -> QueueSettings:
        """These settings of a queue, with what the policies make of them."""
        base = declared(settings)
        if self._rules is None:
            self._rules = self._compiled()
        if not self._rules:
            return base
        policy, operator = (self._first(kind, vhost, name, base) for kind in ("policy", "operator"))
        if policy is None and operator is None:
            return base
        values: dict[str, Any] = {}
        for rule in (policy, operator):
            for field, value in rule.settings.items() if rule is not None else ():
                now = values.get(field, getattr(base, field))
                if field in _LOWER_COUNTS:
                    values[field] = value if now is None else now if value is None else min(now, value)
                elif not _is_declared(base, field):
                    values[field] = value
        if "dead_letter_exchange" not in values and base.dead_letter_exchange is None:
            values.pop("dead_letter_routing_key", None)  # the exchange it goes with is not there
        changed = {field: value for field, value in values.items() if value != getattr(base, field)}
        return msgspec.structs.replace(
            base,
            **changed,
            policy=policy.name if policy is not None else "",
            operator_policy=operator.name if operator is not None else "",
            beneath={field: getattr(base, field) for field in changed},
        )

    def _first(self, kind: str, vhost: str, name: str, base: QueueSettings) -> _Rule | None:
        assert self._rules is not None
        rules = self._rules.get((kind, vhost), ())
        return next((rule for rule in rules if rule.is_for(base) and rule.regex.is_found_in(name)), None)

    def _compiled(self) -> dict[tuple[str, str], list[_Rule]]:
        found: dict[tuple[str, str], list[Policy]] = {}
        for document in self._partition.engine.state.world.documents.get(POLICIES, {}).values():
            policy = msgspec.json.decode(document, type=Policy)
            found.setdefault((policy.kind, policy.vhost), []).append(policy)
        return {
            where: [_rule(policy) for policy in sorted(policies, key=lambda p: (-p.priority, p.name))]
            for where, policies in found.items()
        }


def _is_declared(base: QueueSettings, field: str) -> bool:
    if field.startswith("dead_letter"):
        return base.dead_letter_queue is not None or getattr(base, field) is not None
    return _DECLARED_BY[field] in base.arguments
