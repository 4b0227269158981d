"""The server that a job talks to, as whoever runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from laneway.client import Client, ClientError
from laneway.pipeline.runner import Options

T = TypeVar("T")

IDS_AT_ONCE = 1_000


def client(options: Options, vhost: str = "/") -> Client:
    """Of the server that is the source, or else of the one that was named beside it."""
    url = options.source if options.is_server else options.server
    return Client(url, key=options.key, user=options.user, password=options.password, vhost=vhost)


def of_those_there(ids: Sequence[str], ask: Callable[[Sequence[str]], T]) -> list[T]:
    """What the server answers about dead letters by their ids, a thousand at a time. It refuses all if one of them has
    gone, so that a mistake is noticed; here that is no mistake, and halves are asked until those that have gone stand
    alone."""
    answers: list[T] = []
    waiting = [ids[at : at + IDS_AT_ONCE] for at in range(0, len(ids), IDS_AT_ONCE)][::-1]
    while waiting:
        some = waiting.pop()
        try:
            answers.append(ask(some))
        except ClientError as refused:
            if refused.code in ("queue_not_found", "vhost_not_found"):
                return answers  # it went with all it had
            if refused.code != "message_not_found":
                raise
            half = len(some) // 2
            waiting += [some[half:], some[:half]] if half else []
    return answers
