"""The queues that the frequent actions are about, as these want to see them."""

from __future__ import annotations

from laneway.access import Need
from laneway.broker.broker import Broker
from laneway.frontends.sqs.ask import Ask
from laneway.frontends.sqs.callers import Caller
from laneway.frontends.sqs.errors import no_such_queue
from laneway.frontends.sqs.names import REMEMBERED_URL_CHARS
from laneway.frontends.sqs.queue_attributes import View

_REMEMBERED = 10_000


class Views:
    def __init__(self, broker: Broker) -> None:
        self._settings = broker.queues.settings
        self._known: dict[tuple[Caller, str, Need], View] = {}

    def view(self, ask: Ask, url: str, need: Need) -> View:
        """Of the queue that a URL is of, if who asks may do this with it. That they may is remembered with the view:
        after a change of anything about accounts they are another Caller."""
        view = self._known.get((ask.caller, url, need))
        if view is None or self._settings(ask.caller.vhost, view.name) is not view.settings:
            name = ask.queue(url, need)
            settings = self._settings(ask.caller.vhost, name)
            if settings is None:
                raise no_such_queue()
            view = View(name, settings)
            if len(url) <= REMEMBERED_URL_CHARS:
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                self._known[ask.caller, url, need] = view
        return view
