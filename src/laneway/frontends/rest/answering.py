"""Answers that are put together in callbacks, where nobody is left to raise to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from laneway.errors import LanewayError
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.errors import INTERNAL

log = logging.getLogger("laneway.http")


def answers_anyway(callback: Callable[..., None]) -> Callable[..., None]:
    """If an answer cannot be put together, its client is told so, and the log why."""

    @wraps(callback)
    def guarded(self: object, call: Call, *rest: Any) -> None:
        try:
            callback(self, call, *rest)
        except Exception as trouble:
            answer_anyway(call, trouble)

    return guarded


def answer_anyway(call: Call, trouble: Exception) -> None:
    if not isinstance(trouble, LanewayError):
        log.error("the answer to %s %s could not be made", call.head.method, call.head.target, exc_info=trouble)
        trouble = INTERNAL
    call.refuse(trouble)
