"""One request on its way through the front end: who asks, in which form, for what; and the way back."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, NamedTuple, Protocol

import msgspec

from laneway.access import Need
from laneway.broker.interface import SQS
from laneway.errors import LanewayError
from laneway.frontends.http.protocol import Call
from laneway.frontends.sqs.callers import Caller
from laneway.frontends.sqs.errors import SqsError, sqs_error

log = logging.getLogger("laneway.sqs")


class Form(Protocol):
    """One of the two ways in which SQS is spoken."""

    content_type: bytes

    def is_allowed(self, body: bytes) -> bool:
        """Whether all characters in a request that was decoded are such as AWS lets through, if that can be told at
        once; False if each text must be looked at."""

    def result(self, action: str, result: Any, request_id: str) -> bytes: ...

    def failure(self, error: SqsError, request_id: str) -> tuple[bytes, bytes]:
        """(body, header lines)"""


class Action(NamedTuple):
    """`fast` answers by itself, now or from a callback; `slow` is awaited, and what it returns is the answer."""

    request: type[Any]
    fast: Callable[[Ask, Any], None] | None = None
    slow: Callable[[Ask, Any], Awaitable[Any]] | None = None


class Ask(msgspec.Struct, eq=False):
    call: Call
    form: Form
    action: str
    caller: Caller
    request_id: str

    def check(self, queue: str, need: Need) -> None:
        caller = self.caller
        if not caller.access.allowed(caller.account, caller.vhost, queue, need):
            raise SqsError(
                "AccessDenied",
                f"User: arn:aws:iam::{caller.names.account_id}:user/{caller.account.name} is not authorized to "
                f"perform: sqs:{self.action.lower()} on resource: {self.arn(queue)}",
            )

    def queue(self, url: str, need: Need) -> str:
        """The name of the queue that a URL is of, if the account may do this with it."""
        name = self.caller.names.queue_of_url(url)
        self.check(name, need)
        return name

    def url(self, queue: str) -> str:
        """With the host that the client called, so that it works from where the client stands."""
        call = self.call
        return self.caller.names.url(f"{call.scheme}://{(call.head.host or b'localhost').decode('latin-1')}", queue)

    def arn(self, queue: str) -> str:
        return self.caller.names.arn(self.caller.region, queue)

    def queue_of_arn(self, arn: str) -> str | None:
        return self.caller.names.queue_of_arn(arn, self.caller.region)

    def trace(self) -> str:
        """The X-Ray trace that the request is a part of, as its header says; "" if there is none."""
        return self.call.head.plan.trace  # type: ignore[no-any-return]

    def is_allowed(self) -> bool:
        return self.form.is_allowed(self.call.body)

    def answer(self, result: Any) -> None:
        body = self.form.result(self.action, result, self.request_id)
        self.call.answer(200, body, b"x-amzn-RequestId: %b\r\n" % self.request_id.encode(), self.form.content_type)

    def refuse(self, error: Exception) -> None:
        refuse(self.call, self.form, self.request_id, error)


def refuse(call: Call, form: Form, request_id: str, error: Exception) -> None:
    if not isinstance(error, LanewayError):
        log.error("%s %s failed", call.head.method, call.head.target, exc_info=error)
    told = sqs_error(error)
    call.note_error(SQS, told.kind.code.rpartition(".")[2], told.kind.status)
    body, headers = form.failure(told, request_id)
    headers += b"x-amzn-RequestId: %b\r\n" % request_id.encode()
    call.answer(told.kind.status, body, headers, form.content_type)


def answering(callback: Callable[..., None]) -> Callable[..., None]:
    """Make a method a callback of the broker, whose answer is its last argument. If that is an error, or the method
    raises one, the client is told so, and the log why."""

    @wraps(callback)
    def guarded(self: object, ask: Ask, *rest: Any) -> None:
        try:
            if isinstance(rest[-1], LanewayError):
                ask.refuse(rest[-1])
            else:
                callback(self, ask, *rest)
        except Exception as error:
            ask.refuse(error)

    return guarded
