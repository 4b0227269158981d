"""What can be said about a request from its head alone. Made once for identical heads, so nothing here depends on the
body, the connection, or the moment."""

from __future__ import annotations

from typing import Any

from laneway.access import Access, Account, Need
from laneway.core.message import JSON_TYPE
from laneway.frontends.http.errors import HttpError
from laneway.frontends.http.head import Head
from laneway.frontends.rest.credentials import Credentials
from laneway.frontends.rest.routing import Route, Router, convert_query

#: A body of these types is read as JSON: none at all, JSON, and what `curl -d` calls everything unless told otherwise.
_JSON_TYPES = ("", JSON_TYPE, "application/x-www-form-urlencoded")
#: Larger messages are not gathered before they are decoded: it is not what they cost.
_GATHERED_BYTES = 8192


class Plan:
    """The account that a head's credentials stand for, and that it may do what is asked, are remembered with it until
    anything about accounts changes."""

    __slots__ = (
        "account",
        "content_type",
        "credentials",
        "exchange",
        "fast",
        "is_allowed",
        "is_gathered",
        "is_hot",
        "is_json",
        "is_public",
        "item",
        "known_version",
        "knows_loopback",
        "names",
        "part",
        "place",
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
        self.account: Account | None = None
        self.is_allowed = False  # the account has been found to have the permission that this route needs
        self.known_version, self.knows_loopback = -1, False  # of the accounts when `account` was found, and for whom
        self.content_type = (head.content_type or b"").decode("latin-1")
        media_type = self.content_type.partition(";")[0].strip().lower()
        self.is_json = media_type in _JSON_TYPES
        is_bare = self.is_json and not match.query and head.idempotency_key is None  # the body says it all
        self.is_gathered = is_bare and head.content_length <= _GATHERED_BYTES  # a single publish, with others
        self.place = (match.vhost, match.queue)
        self.is_hot = self.fast is not None and self.is_json

    def find_account(self, access: Access, from_loopback: bool) -> bool:
        """Find out who is asking; False if that takes a password check first."""
        self.is_allowed = False
        self.known_version = -1
        self.account = self.credentials.account_now(access, from_loopback)
        if self.account is None:
            return False
        self.known_version, self.knows_loopback = access.version, from_loopback
        return True

    def check(self, access: Access, account: Account, need: Need) -> None:
        """Raises unless this account, who is asking, may do this with the queue of the path."""
        if not self.is_allowed:
            access.check(account, self.vhost, self.queue, need)
            self.is_allowed = account is self.account

    def options(self, kind: type[Any]) -> Any:
        """The query string, as this struct."""
        return convert_query(self.query, kind)
