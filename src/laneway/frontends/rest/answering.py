"""Callbacks that the broker answers to, where nobody is left to raise to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from laneway.errors import LanewayError
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.errors import INTERNAL

log = logging.getLogger("laneway.http")


def answering(callback: Callable[..., None]) -> Callable[..., None]:
    """For a method that makes a call's answer of the broker's, which comes last. If that is an error, the client gets
    it; if the answer cannot be made, the client gets an internal error, and the log says why."""

    @wraps(callback)
    def guarded(self: object, call: Call, *rest: Any) -> None:
        answer = rest[-1]
        try:
            if isinstance(answer, LanewayError):
                call.refuse(answer)
            else:
                callback(self, call, *rest)
        except Exception:
            log.exception("the answer to %s %s could not be made", call.head.method, call.head.target)
            call.refuse(INTERNAL)

    return guarded
