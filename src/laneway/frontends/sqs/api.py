"""The SQS service: which requests are its own, who asks, and the way from an action to its handler."""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
import time
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

from laneway.access import Access
from laneway.broker.interface import Broker
from laneway.errors import LanewayError, Unavailable
from laneway.frontends.http.head import Head
from laneway.frontends.http.protocol import Call
from laneway.frontends.sqs import wire as w
from laneway.frontends.sqs.alike import Shapes, signature_of
from laneway.frontends.sqs.ask import Action, Ask, Form, refuse
from laneway.frontends.sqs.callers import Caller, Callers
from laneway.frontends.sqs.errors import KINDS, SqsError, sqs_error
from laneway.frontends.sqs.json_form import TARGET_PREFIX, JsonForm
from laneway.frontends.sqs.messages import FrequentActions
from laneway.frontends.sqs.moving import Moving
from laneway.frontends.sqs.names import Names, SqsOptions
from laneway.frontends.sqs.query_form import QueryForm, QueryJsonForm
from laneway.frontends.sqs.queues import QueueActions
from laneway.frontends.sqs.signing import Signature, SigningKey, is_signed, normal_path, read_signature

_QUEUE_PATH = re.compile(rb"/[0-9]{12}/[^/]+/?")
#: Of a body: a batch has a MiB at most, which its encoding may make several times as long. What is not about messages
#: needs far less. Looked at before anything is decoded.
MOST_BYTES = 16 * 1024 * 1024
MOST_BYTES_OF_RARE = 256 * 1024
#: What is not asked at a queue's URL.
_OF_NO_QUEUE = frozenset({"CreateQueue", "ListQueues"})
_SLOW_COUNT = 256  # rare actions worked on at once, over all connections
_WAY = "an SQS signature"
_FORM_TYPE = b"application/x-www-form-urlencoded"


def _target(head: Head) -> tuple[bytes, bytes]:
    """(path, query)"""
    target = head.target
    if not target.startswith(b"/"):  # the form with a scheme and host that proxies are sent
        target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
    path, _, query = target.partition(b"?")
    return path, query


class RequestPlan:
    """What can be said about a request from its head alone, and about others that differ in their signatures; the
    Signature is the head's own."""

    __slots__ = ("action", "query", "queue_path", "refusal", "region", "trace", "wants_json")

    def __init__(self, head: Head, options: SqsOptions) -> None:
        path, self.query = _target(head)
        path = normal_path(path)
        self.queue_path = path.decode("latin-1") if _QUEUE_PATH.fullmatch(path) else ""
        self.action = (head.x_amz_target or b"").removeprefix(TARGET_PREFIX).decode("latin-1")
        self.refusal: SqsError | None = None
        self.region = options.region
        self.trace, self.wants_json = "", False
        for name, value in head.headers:
            if name == b"x-amzn-trace-id":
                self.trace = value.strip().decode("latin-1")
            elif name == b"accept":
                self.wants_json = value.strip().lower() == b"application/json"
        try:
            if is_signed(head, self.query):
                head.is_repeated = False
                head.own = signature = read_signature(head, path, self.query)
                self.region = signature.credential.region
        except SqsError as error:
            # A copy, and a copy of that whenever it is raised: its traceback would lead back here, and such a circle
            # waits for the garbage collector with all that a stranger sent.
            self.refusal = copy(error)


class SqsApi:
    """What http.protocol.Connection calls an application."""

    def __init__(
        self,
        broker: Broker,
        access: Access,
        options: SqsOptions | None = None,
        *,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._options = options or SqsOptions()
        self._failures = access.failures
        self._callers = Callers(access, Names(self._options))
        self._now_s = now_s
        self._json, self._query, self._query_json = JsonForm(), QueryForm(), QueryJsonForm()
        self._shapes = Shapes()
        self._messages = FrequentActions(broker)
        queues = QueueActions(broker, waiting_periods=self._options.waiting_periods)
        self._actions = _actions(self._messages, queues, Moving(broker))
        self._tasks: set[asyncio.Task[None]] = set()
        stem = secrets.token_hex(10)
        form = f"{stem[:8]}-{stem[8:12]}-{stem[12:16]}-{stem[16:]}-%012x"
        self._request_ids = map(form.__mod__, itertools.count(1))

    def takes(self, head: Head) -> bool:
        if head.x_amz_target is not None:
            return head.x_amz_target.startswith(TARGET_PREFIX)
        path, query = _target(head)
        if is_signed(head, query) or _QUEUE_PATH.fullmatch(path):
            return True
        if path != b"/":
            return False
        return (head.method == "POST" and (head.content_type or b"").lower().startswith(_FORM_TYPE)) or (
            b"Action=" in query
        )

    def plan(self, head: Head) -> RequestPlan:
        return RequestPlan(head, self._options)

    def learn(self, raw: bytes, head: Head) -> None:
        plan: RequestPlan = head.plan
        if head.own is not None and not plan.query:
            self._shapes.learn(raw, head, head.own)

    def recall(self, raw: bytes) -> Head | None:
        found = self._shapes.find(raw)
        if found is None:
            return None
        shape, values = found
        try:
            signature = signature_of(shape, values)
        except SqsError:  # the date is none: the long way tells
            return None
        return shape.head.like(int(values[shape.length_at]), signature)

    def handle(self, call: Call) -> None:
        plan: RequestPlan = call.head.plan
        request_id = next(self._request_ids)
        form: Form = self._json if plan.action else self._query_json if plan.wants_json else self._query
        try:
            if plan.refusal is not None:
                raise copy(plan.refusal)
            caller = self._caller(call, plan)
            name, action, asked = self._read(call, plan)
            ask = Ask(call, form, name, caller, request_id)
            if action.fast is not None:
                action.fast(ask, asked)
            else:
                self._start(ask, action, asked)
        except Exception as error:
            is_unknown = isinstance(error, SqsError) and error.kind is KINDS["UnknownOperation"]
            refuse(call, self._query if is_unknown else form, request_id, error)

    def knows(self, call: Call) -> bool:
        """A key that is known is enough: the signature is of the body too, so it cannot be checked before."""
        plan: RequestPlan = call.head.plan
        if plan.refusal is not None:
            return False
        signature: Signature | None = call.head.own
        if signature is not None and self._callers.signing(signature.credential) is not None:
            return True
        try:
            return self._callers.guest(call, plan.region) is not None
        except SqsError:
            return False

    def end_wait(self, call: Call) -> None:
        self._messages.end_wait(call)

    def recheck(self, call: Call) -> None:
        self._messages.recheck(call, partial(self._who, call, call.head.plan))

    def refusal(self, error: LanewayError) -> tuple[int, bytes, bytes]:
        told = sqs_error(error)
        body, headers = self._json.failure(told, "")
        return told.kind.status, body, headers

    def _read(self, call: Call, plan: RequestPlan) -> tuple[str, Action, Any]:
        _check_size(call, MOST_BYTES)
        if plan.action:
            action = self._action(plan.action)
            if action.slow is not None:
                _check_size(call, MOST_BYTES_OF_RARE)
            return plan.action, action, self._json.decode(action.request, call.body, plan.queue_path)
        parameters = self._query.parameters(plan.query, call.body)
        name = parameters.pop("Action", "")
        if not name:
            raise SqsError("UnknownOperation", "The request names no action.")
        if plan.queue_path and name in _OF_NO_QUEUE:
            raise _no_action(name)
        action = self._action(name)
        if action.slow is not None:
            _check_size(call, MOST_BYTES_OF_RARE)
        if plan.queue_path:
            parameters.setdefault("QueueUrl", plan.queue_path)
        return name, action, self._query.decode(action.request, parameters)

    def _action(self, name: str) -> Action:
        action = self._actions.get(name)
        if action is None:
            raise _no_action(name)
        return action

    # --- who asks

    def _caller(self, call: Call, plan: RequestPlan) -> Caller:
        signature: Signature | None = call.head.own
        caller, key = self._who(call, plan)
        if signature is not None and key is not None:
            try:
                signature.check(key, call.body, self._now_s())
            except SqsError as error:
                self._count_failure(call, signature, error.message)
                raise
            if self._callers.found is not None:
                self._callers.remember()
        if call.head.raw:
            call.remember()
        call.account = caller.account
        return caller

    def _who(self, call: Call, plan: RequestPlan) -> tuple[Caller, SigningKey | None]:
        """Who asks, and what they must have signed with; None: nothing needs to be signed."""
        signature: Signature | None = call.head.own
        known = None if signature is None else self._callers.signing(signature.credential)
        if known is not None:
            return known
        # Whoever needs no key may have any: clients that insist on one are given a made-up one.
        caller = self._callers.guest(call, plan.region)
        if caller is None and signature is not None:
            self._count_failure(call, signature, "no such access key")
            raise SqsError("InvalidClientTokenId", "The security token included in the request is invalid.")
        if caller is None:
            raise SqsError("MissingAuthenticationToken", "Request is missing Authentication Token.")
        return caller, None

    def _count_failure(self, call: Call, signature: Signature, why: str) -> None:
        """Raises if there were too many before it. Checking a signature costs little, so whoever signs rightly never
        waits, whatever others at the same address or with the same key id do."""
        origin, key_id = call.origin(_WAY), signature.credential.access_key
        self._failures.check(origin, key_id)
        self._failures.failed(origin, key_id, why)

    # --- what is awaited

    def _start(self, ask: Ask, action: Action, asked: Any) -> None:
        if len(self._tasks) >= _SLOW_COUNT:
            raise Unavailable(f"{_SLOW_COUNT} administrative requests are being worked on: try again soon")
        # Requests behind this one on its connection wait: what they do must come after what this one does.
        ask.call.connection.hold(ask.call)
        task = asyncio.get_running_loop().create_task(_run(ask, action, asked))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _no_action(name: str) -> SqsError:
    return SqsError("InvalidAction", f"The action {name[:80]} is not valid for this endpoint.")


def _check_size(call: Call, most: int) -> None:
    if len(call.body) > most:
        raise SqsError("InvalidParameterValue", f"The request has {len(call.body)} bytes, {most} are allowed.")


async def _run(ask: Ask, action: Action, asked: Any) -> None:
    try:
        assert action.slow is not None
        ask.answer(await action.slow(ask, asked))
    except Exception as error:
        ask.refuse(error)


def _actions(messages: FrequentActions, queues: QueueActions, moving: Moving) -> dict[str, Action]:
    return {
        "AddPermission": Action(w.AddPermission, slow=queues.add_permission),
        "CancelMessageMoveTask": Action(w.CancelMessageMoveTask, slow=moving.cancel),
        "ChangeMessageVisibility": Action(w.ChangeMessageVisibility, messages.change_visibility),
        "ChangeMessageVisibilityBatch": Action(w.ChangeMessageVisibilityBatch, messages.change_visibility_batch),
        "CreateQueue": Action(w.CreateQueue, slow=queues.create),
        "DeleteMessage": Action(w.DeleteMessage, messages.delete),
        "DeleteMessageBatch": Action(w.DeleteMessageBatch, messages.delete_batch),
        "DeleteQueue": Action(w.QueueRequest, slow=queues.delete),
        "GetQueueAttributes": Action(w.GetQueueAttributes, slow=queues.get_attributes),
        "GetQueueUrl": Action(w.GetQueueUrl, slow=queues.get_url),
        "ListDeadLetterSourceQueues": Action(w.ListDeadLetterSourceQueues, slow=queues.list_sources),
        "ListMessageMoveTasks": Action(w.ListMessageMoveTasks, slow=moving.list_tasks),
        "ListQueueTags": Action(w.QueueRequest, slow=queues.list_tags),
        "ListQueues": Action(w.ListQueues, slow=queues.list_queues),
        "PurgeQueue": Action(w.QueueRequest, slow=queues.purge),
        "ReceiveMessage": Action(w.ReceiveMessage, messages.receive),
        "RemovePermission": Action(w.RemovePermission, slow=queues.remove_permission),
        "SendMessage": Action(w.SendMessage, messages.send),
        "SendMessageBatch": Action(w.SendMessageBatch, messages.send_batch),
        "SetQueueAttributes": Action(w.SetQueueAttributes, slow=queues.set_attributes),
        "StartMessageMoveTask": Action(w.StartMessageMoveTask, slow=moving.start),
        "TagQueue": Action(w.TagQueue, slow=queues.tag),
        "UntagQueue": Action(w.UntagQueue, slow=queues.untag),
    }
