"""The actions on queues: create, find, list, describe, change, purge, delete, tag; all of them rare."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from laneway.access import OPERATOR
from laneway.broker.interface import (
    Broker,
    ChangeQueue,
    CreateVhost,
    DeclareQueue,
    DeleteQueue,
    DescribeQueue,
    PurgeQueue,
    Topology,
)
from laneway.broker.values import QueueDeclared, QueueInfo, QueueSettings, QueueStats
from laneway.errors import Forbidden
from laneway.frontends.sqs import queue_attributes as qa
from laneway.frontends.sqs import wire as w
from laneway.frontends.sqs.ask import Ask
from laneway.frontends.sqs.errors import SqsError, invalid, missing, no_such_queue, value_invalid
from laneway.frontends.sqs.names import check_new_name
from laneway.frontends.sqs.waits import DELETED, PURGED, Waits

MOST_LISTED = 1000
_LOOKED_AT = 1000  # queues, in one turn of the loop
MOST_TAGS = 50
MOST_STATEMENTS = 20
MOST_ACTIONS = 7
_NO_LABEL = "can't find label."
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ACTIONS = frozenset(
    {
        "*",
        "ChangeMessageVisibility",
        "DeleteMessage",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "PurgeQueue",
        "ReceiveMessage",
        "SendMessage",
    }
)


#: What no policy can let others do.
_OWNERS = frozenset(
    {
        "AddPermission",
        "CancelMessageMoveTask",
        "CreateQueue",
        "DeleteQueue",
        "ListMessageMoveTasks",
        "ListQueueTags",
        "ListQueues",
        "RemovePermission",
        "SetQueueAttributes",
        "StartMessageMoveTask",
        "TagQueue",
        "UntagQueue",
    }
)


class QueueActions:
    def __init__(self, broker: Broker, *, waiting_periods: bool) -> None:
        self._broker = broker
        self._topology = broker.topology
        self._waiting_periods = waiting_periods
        self._waits = Waits(broker, is_on=waiting_periods)

    def _info(self, ask: Ask, name: str) -> QueueInfo:
        info = self._topology.queue(ask.caller.vhost, name)
        if info is None:
            raise no_such_queue()
        return info

    def _within_limits(self, settings: QueueSettings) -> QueueSettings:
        most = min(settings.max_message_bytes, self._broker.limits.max_message_bytes)
        return msgspec.structs.replace(settings, max_message_bytes=most)

    async def _change(self, ask: Ask, name: str, settings: QueueSettings) -> None:
        """Give an existing queue these settings. Only what differs is changed, so that a change of something else that
        comes at the same time is kept."""
        have, want = self._info(ask, name).settings, self._within_limits(settings)
        fields = QueueSettings.__struct_fields__
        changes = {field: getattr(want, field) for field in fields if getattr(want, field) != getattr(have, field)}
        await self._broker.ask(ChangeQueue(ask.caller.vhost, name, changes))

    # --- create, find, list

    async def create(self, ask: Ask, asked: w.CreateQueue) -> w.QueueUrlResult:
        name, given = asked.QueueName, asked.Attributes
        check_new_name(name, given.get("FifoQueue", "").lower() == "true")
        ask.check(name, "configure")
        found = self._topology.queue(ask.caller.vhost, name)
        if found is None:
            settings = qa.changed(name, qa.new_queue(name), given, ask.queue_of_arn)
            self._check_target(ask, name, settings, given)
            if asked.tags:
                settings = qa.with_own(settings, {**qa.own_of(settings), "tags": _check_tags(name, asked.tags)})
            if self._waits.is_waiting(DELETED, ask.caller.vhost, name):
                raise SqsError(
                    "QueueDeletedRecently",
                    "You must wait 60 seconds after deleting a queue before you can create another with the same name.",
                )
            await self._create_region(ask)
            request = DeclareQueue(ask.caller.vhost, name, self._within_limits(settings))
            declared: QueueDeclared = await self._broker.ask(request)
            found = None if declared.is_new else declared.info  # another request has just created it
        if found is not None:
            settings = qa.changed(name, found.settings, given, ask.queue_of_arn)
            other = qa.difference(found, settings, given)
            if other is not None:
                raise SqsError(
                    "QueueNameExists",
                    f"A queue already exists with the same name and a different value for attribute {other}",
                )
        return w.QueueUrlResult(QueueUrl=ask.url(name))

    async def _create_region(self, ask: Ask) -> None:
        """A region comes to be with its first queue, if whoever creates that one may create virtual hosts."""
        if not self._topology.has_vhost(ask.caller.vhost):
            try:
                ask.caller.access.check_role(ask.caller.account, OPERATOR)
            except Forbidden as refused:
                raise SqsError(
                    "AccessDenied",
                    f"There are no queues in {ask.caller.region} yet, and to begin there {refused.message}.",
                ) from None
            await self._broker.ask(CreateVhost(ask.caller.vhost))

    def _check_target(self, ask: Ask, name: str, settings: QueueSettings, given: Mapping[str, str]) -> None:
        target = settings.dead_letter_queue
        if target is None:
            return
        ask.check(target, "write")
        info = self._topology.queue(ask.caller.vhost, target)
        policy = given["RedrivePolicy"]
        if info is None:
            raise value_invalid(policy, "RedrivePolicy", "Dead letter target does not exist.")
        if target == name:
            raise value_invalid(policy, "RedrivePolicy", "Dead letter target must not be the queue itself.")
        if not qa.allows_source(info.settings, ask.arn(name)):
            raise value_invalid(
                policy,
                "RedrivePolicy",
                "Queue does not have permission to use the dead letter queue as redrive target.",
            )

    async def get_url(self, ask: Ask, asked: w.GetQueueUrl) -> w.QueueUrlResult:
        if asked.QueueOwnerAWSAccountId not in (None, ask.caller.names.account_id):
            raise no_such_queue()
        if not ask.caller.access.may_see(ask.caller.account, ask.caller.vhost, asked.QueueName):
            ask.check(asked.QueueName, "stats")
        self._info(ask, asked.QueueName)
        return w.QueueUrlResult(QueueUrl=ask.url(asked.QueueName))

    async def list_queues(self, ask: Ask, asked: w.ListQueues) -> w.ListQueuesResult:
        page, token = await _page(self._visible(ask, asked.QueueNamePrefix, asked.NextToken), asked.MaxResults)
        return w.ListQueuesResult(QueueUrls=[ask.url(name) for name in page], NextToken=token)

    async def list_sources(self, ask: Ask, asked: w.ListDeadLetterSourceQueues) -> w.ListDeadLetterSourceQueuesResult:
        name = ask.queue(asked.QueueUrl, "stats")
        self._info(ask, name)
        sources = self._visible(ask, "", asked.NextToken, source_of=name)
        page, token = await _page(sources, asked.MaxResults)
        return w.ListDeadLetterSourceQueuesResult(queueUrls=[ask.url(source) for source in page], NextToken=token)

    async def _visible(
        self, ask: Ask, prefix: str, token: str | None, source_of: str | None = None
    ) -> AsyncIterator[str]:
        """The names of queues that the caller may see."""
        may_see, account, vhost = ask.caller.access.may_see, ask.caller.account, ask.caller.vhost
        after = None if token is None else _read_token(token)
        async for info in queues_of(self._topology, vhost, prefix, after):
            if source_of in (None, info.settings.dead_letter_queue) and may_see(account, vhost, info.name):
                yield info.name

    # --- attributes

    async def get_attributes(self, ask: Ask, asked: w.GetQueueAttributes) -> w.AttributesResult:
        name = ask.queue(asked.QueueUrl, "stats")
        info = self._info(ask, name)
        stats: QueueStats = await self._broker.ask(DescribeQueue(ask.caller.vhost, name))
        return w.AttributesResult(Attributes=qa.told(info, stats, asked.AttributeNames, ask.arn))

    async def set_attributes(self, ask: Ask, asked: w.SetQueueAttributes) -> None:
        name = ask.queue(asked.QueueUrl, "configure")
        info = self._info(ask, name)
        settings = qa.changed(name, info.settings, asked.Attributes, ask.queue_of_arn)
        if settings.dead_letter_queue != info.settings.dead_letter_queue:
            self._check_target(ask, name, settings, asked.Attributes)
        if self._waiting_periods:
            settings = qa.with_earlier_scope(settings, info.settings, self._broker.now())
        await self._change(ask, name, settings)

    # --- the end of messages, and of queues

    async def purge(self, ask: Ask, asked: w.QueueRequest) -> None:
        """AWS deletes those in flight as well."""
        name, vhost = ask.queue(asked.QueueUrl, "configure"), ask.caller.vhost
        self._info(ask, name)
        if self._waits.is_waiting(PURGED, vhost, name) or not await self._waits.begin(PURGED, vhost, name):
            text = f"Only one PurgeQueue operation on {name} is allowed every 60 seconds."
            raise SqsError("PurgeQueueInProgress", text)
        await self._broker.ask(PurgeQueue(vhost, name, leased=True))

    async def delete(self, ask: Ask, asked: w.QueueRequest) -> None:
        """AWS deletes a dead-letter queue whoever uses it; its sources then keep their messages. That changes them, so
        it takes the permission to."""
        name, vhost = ask.queue(asked.QueueUrl, "configure"), ask.caller.vhost
        self._info(ask, name)
        sources = [
            info.name async for info in queues_of(self._topology, vhost) if info.settings.dead_letter_queue == name
        ]
        allowed, account = ask.caller.access.allowed, ask.caller.account
        if not all(allowed(account, vhost, source, "configure") for source in sources):
            raise SqsError(
                "AccessDenied",
                "It is the dead-letter queue of queues that you are not authorized to perform: sqs:setqueueattributes "
                "on. Whoever is must give them another one first.",
            )
        for source in sources:
            keep = {"dead_letter_queue": None, "max_receives": None}
            await self._broker.ask(ChangeQueue(vhost, source, keep))
        await self._broker.ask(DeleteQueue(vhost, name))
        await self._waits.begin(DELETED, vhost, name)

    # --- tags and permissions: kept, and shown again

    async def tag(self, ask: Ask, asked: w.TagQueue) -> None:
        name = ask.queue(asked.QueueUrl, "configure")
        settings = self._info(ask, name).settings
        if not asked.Tags:
            raise missing("Tags")
        own = qa.own_of(settings)
        tags = _check_tags(name, {**own.get("tags", {}), **asked.Tags})
        await self._change(ask, name, qa.with_own(settings, {**own, "tags": tags}))

    async def untag(self, ask: Ask, asked: w.UntagQueue) -> None:
        name = ask.queue(asked.QueueUrl, "configure")
        settings = self._info(ask, name).settings
        if not asked.TagKeys or not all(1 <= len(key) <= 128 for key in asked.TagKeys):
            raise invalid("Tag keys must be between 1 and 128 characters in length.")
        own = qa.own_of(settings)
        tags = {key: value for key, value in own.get("tags", {}).items() if key not in asked.TagKeys}
        await self._change(ask, name, qa.with_own(settings, {**own, "tags": tags}))

    async def list_tags(self, ask: Ask, asked: w.QueueRequest) -> w.TagsResult:
        name = ask.queue(asked.QueueUrl, "stats")
        return w.TagsResult(Tags=qa.own_of(self._info(ask, name).settings).get("tags", {}))

    async def add_permission(self, ask: Ask, asked: w.AddPermission) -> None:
        name = ask.queue(asked.QueueUrl, "configure")
        settings = self._info(ask, name).settings
        if not _LABEL.fullmatch(asked.Label):
            raise value_invalid(
                asked.Label, "Label", "Must be 1 to 80 alphanumeric characters, hyphens or underscores."
            )
        _check_actions(asked.Actions)
        if not asked.AWSAccountIds:
            raise value_invalid([], "PrincipalId", "Unable to verify.")
        for account in asked.AWSAccountIds:
            if not re.fullmatch(r"[0-9]{12}", account):
                raise value_invalid(account, "PrincipalId", "Unable to verify.")
        policy = _policy(settings, ask.arn(name))
        statements = policy["Statement"]
        if any(statement.get("Sid") == asked.Label for statement in statements):
            raise value_invalid(asked.Label, "Label", "Already exists.")
        statements.append(
            {
                "Sid": asked.Label,
                "Effect": "Allow",
                "Principal": {"AWS": _one_or_all([f"arn:aws:iam::{account}:root" for account in asked.AWSAccountIds])},
                "Action": _one_or_all([f"SQS:{action}" for action in asked.Actions]),
                "Resource": ask.arn(name),
            }
        )
        if len(statements) > MOST_STATEMENTS:
            raise SqsError(
                "OverLimit", f"{len(statements)} statements were found, maximum allowed is {MOST_STATEMENTS}."
            )
        await self._change(ask, name, _with_policy(settings, policy))

    async def remove_permission(self, ask: Ask, asked: w.RemovePermission) -> None:
        name = ask.queue(asked.QueueUrl, "configure")
        settings = self._info(ask, name).settings
        policy = _policy(settings, ask.arn(name))
        kept = [statement for statement in policy["Statement"] if statement.get("Sid") != asked.Label]
        if len(kept) == len(policy["Statement"]):
            raise value_invalid(asked.Label, "Label", "can't find label on existing policy." if kept else _NO_LABEL)
        await self._change(ask, name, _with_policy(settings, {**policy, "Statement": kept}))


def _check_actions(actions: list[str]) -> None:
    if not actions:
        raise missing("Actions")
    for action in actions:
        if action in _OWNERS:
            reason = "Only the queue owner is allowed to invoke this action."
            raise value_invalid(f"SQS:{action}", "ActionName", reason)
        if action not in _ACTIONS:
            reason = "Please refer to the appropriate WSDL for a list of valid actions. "
            raise value_invalid(f"SQS:{action}", "ActionName", reason)
    if len(actions) > MOST_ACTIONS:
        raise SqsError("OverLimit", f"{len(actions)} Actions were found, maximum allowed is {MOST_ACTIONS}.")


def _one_or_all(texts: list[str]) -> str | list[str]:
    """As AWS writes lists in policies."""
    return texts[0] if len(texts) == 1 else texts


def _policy(settings: QueueSettings, arn: str) -> dict[str, Any]:
    """That of a queue, to be changed; one without statements if it has none."""
    text = qa.own_of(settings).get("attributes", {}).get("Policy")
    policy: dict[str, Any] = (
        msgspec.json.decode(text) if text else {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy"}
    )
    statements = policy.get("Statement", [])
    statements = [statements] if isinstance(statements, dict) else statements
    policy["Statement"] = [one for one in statements if isinstance(one, dict)] if isinstance(statements, list) else []
    return policy


def _with_policy(settings: QueueSettings, policy: dict[str, Any]) -> QueueSettings:
    own = qa.own_of(settings)
    attributes = {name: value for name, value in own.get("attributes", {}).items() if name != "Policy"}
    if policy["Statement"]:
        attributes["Policy"] = msgspec.json.encode(policy).decode()
    return qa.with_own(settings, {**own, "attributes": attributes})


def _check_tags(queue: str, tags: dict[str, str]) -> dict[str, str]:
    if len(tags) > MOST_TAGS:
        raise invalid(f"Too many tags added for queue {queue}.")
    for key, value in tags.items():
        if not 1 <= len(key) <= 128 or len(value) > 256 or key.lower().startswith("aws:"):
            raise value_invalid(
                key, "Tag", "Keys have 1 to 128 characters and do not begin with aws:, values up to 256."
            )
    return tags


async def queues_of(
    topology: Topology, vhost: str, prefix: str = "", after: str | None = None
) -> AsyncIterator[QueueInfo]:
    """All queues of a virtual host, in order. There may be very many, so others have their turns meanwhile."""
    while True:
        at = None if after is None else (vhost, after)
        infos = topology.queues(vhost=vhost, prefix=prefix, limit=_LOOKED_AT, after=at)
        for info in infos:
            yield info
        if len(infos) < _LOOKED_AT:
            return
        after = infos[-1].name
        await asyncio.sleep(0)


async def _page(names: AsyncIterator[str], most: int | None) -> tuple[list[str], str | None]:
    """Without MaxResults the first thousand and no token, as AWS does."""
    if most is not None and not 1 <= most <= MOST_LISTED:
        raise value_invalid(most, "MaxResults", f"Must be an integer between 1 and {MOST_LISTED}.")
    page: list[str] = []
    async for name in names:
        if len(page) == (most or MOST_LISTED):
            return page, None if most is None else base64.urlsafe_b64encode(page[-1].encode()).decode()
        page.append(name)
    return page, None


def _read_token(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token.encode("ascii")).decode()
    except (binascii.Error, UnicodeError, ValueError):
        raise invalid("Invalid or expired next token.") from None
