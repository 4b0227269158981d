"""What can be said about a request from its head alone. Made once for identical heads, so nothing here depends on the
body, the connection, or the moment."""

from __future__ import annotations

from typing import Any

from laneway.core.message import JSON_TYPE
from laneway.frontends.http.errors import HttpError
from laneway.frontends.http.head import Head
from laneway.frontends.rest.credentials import Credentials
from laneway.frontends.rest.routing import Route, Router, convert_query

#: A body of these types is read as JSON: none at all, JSON, and what `curl -d` calls everything unless told otherwise.
_JSON_TYPES = ("", JSON_TYPE, "application/x-www-form-urlencoded")


class Plan:
    __slots__ = (
        "content_type",
        "credentials",
        "exchange",
        "fast",
        "is_json",
        "is_public",
        "item",
        "names",
        "part",
        "query",
        "queue",
        "queue_json",
        "refusal",
        "route",
        "vhost",
    )

    def __init__(self, head: Head, router: Router) -> None:
        match = router.match(head.method, head.target)
        self.refusal: HttpError | None = match.refusal
        self.route: Route | None = match.route
        self.fast = match.route.fast if match.route is not None else None
        self.is_public = match.route is not None and match.route.public
        self.vhost = match.vhost
        self.queue = match.queue
        self.exchange = match.exchange
        self.queue_json = match.queue_json
        self.item = match.item
        self.part = match.part
        self.names = match.names
        self.query = match.query
        self.credentials = Credentials(head)
        self.content_type = (head.content_type or b"").decode("latin-1")
        media_type = self.content_type.partition(";")[0].strip().lower()
        self.is_json = media_type in _JSON_TYPES

    def options(self, kind: type[Any]) -> Any:
        """The query string, as this struct."""
        return convert_query(self.query, kind)
