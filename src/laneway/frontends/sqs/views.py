"""The queues that the frequent actions are about, as these want to see them."""

from __future__ import annotations

from laneway.broker.broker import Broker
from laneway.frontends.sqs.ask import Ask
from laneway.frontends.sqs.errors import no_such_queue
from laneway.frontends.sqs.queue_attributes import View

_REMEMBERED = 10_000


class Views:
    def __init__(self, broker: Broker) -> None:
        self._settings = broker.find_settings
        self._known: dict[tuple[str, str], View] = {}

    def view(self, ask: Ask, name: str) -> View:
        settings = self._settings(ask.vhost, name)
        if settings is None:
            raise no_such_queue()
        view = self._known.get((ask.vhost, name))
        if view is None or view.settings is not settings:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            view = self._known[ask.vhost, name] = View(name, settings)
        return view
