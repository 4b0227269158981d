"""The queues that the frequent actions are about, as these want to see them."""

from __future__ import annotations

from laneway.access import Need
from laneway.broker.interface import Broker
from laneway.frontends.sqs.ask import Ask
from laneway.frontends.sqs.callers import Caller
from laneway.frontends.sqs.errors import no_such_queue
from laneway.frontends.sqs.names import REMEMBERED_URL_CHARS
from laneway.frontends.sqs.queue_attributes import View

_REMEMBERED = 10_000


class Views:
    """Remembers each View together with the version of the topology that it was made from."""

    def __init__(self, broker: Broker) -> None:
        self._topology = broker.topology
        self._known: dict[tuple[Caller, str, Need], tuple[int, View]] = {}

    def view(self, ask: Ask, url: str, need: Need) -> View:
        """The queue that a URL names, if the caller may do this with it. That they may is remembered with the view:
        after a change of anything about accounts they are another Caller."""
        version, key = self._topology.version, (ask.caller, url, need)
        known = self._known.get(key)
        if known is not None and known[0] == version:
            return known[1]
        info = self._topology.queue(ask.caller.vhost, ask.queue(url, need))
        if info is None:
            raise no_such_queue()
        view = View(info)
        if len(url) <= REMEMBERED_URL_CHARS:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = version, view
        return view
