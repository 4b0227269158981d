"""What can be said about a request from its head alone. Made once for heads that are the same, so nothing here depends
on the body, the connection, or the moment."""

from __future__ import annotations

import re
from typing import Any

from laneway.access import Access, Account, Need
from laneway.core.message import JSON_TYPE
from laneway.frontends.http.credentials import Credentials
from laneway.frontends.http.errors import HttpError
from laneway.frontends.http.head import Head, is_short, is_worth_keeping
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.routing import ApiRoute, Router, convert_query

#: A body of these types is read as JSON: none at all, JSON, and what `curl -d` calls everything unless told otherwise.
_JSON_TYPES = ("", JSON_TYPE, "application/x-www-form-urlencoded")
#: The first line of a request about one message: only the id and the handle may differ, and only in their digits.
_ONE_MESSAGE = re.compile(
    rb"(?P<method>[A-Z]+) (?P<target>(?P<path>/[^ ?#]*/messages/)(?P<message_id>[0-9a-f-]{36})(?P<action>(?:/[a-z]+)?)"
    rb"(?P<query>\?receipt_handle=[0-9a-zA-Z]{0,64})?) HTTP/1\.1\r\n"
)
#: Each request has a key of its own, which has no blanks and so cannot be anything but the value of its header.
_KEYED = re.compile(rb"\r\n[Ii]dempotency-[Kk]ey: (?P<key>[!-~]{1,255})\r\n")
_REMEMBERED_SHAPES = 1024


class HeadPlan:
    """The account that a head's credentials stand for, and that it may do what is asked, are remembered with it until
    anything about accounts changes."""

    __slots__ = (
        "account",
        "content_type",
        "credentials",
        "exchange",
        "fast",
        "is_allowed",
        "is_for_scrapers",
        "is_hot",
        "is_json",
        "is_public",
        "known_peer_kind",
        "known_version",
        "match",
        "names",
        "query",
        "queue",
        "queue_json",
        "refusal",
        "route",
        "vhost",
    )

    def __init__(self, head: Head, router: Router) -> None:
        self.match = match = router.match(head.method, head.target)
        self.refusal: HttpError | None = match.refusal
        self.route: ApiRoute | None = match.route
        self.fast = match.route.fast if match.route is not None else None
        self.is_public = match.route is not None and match.route.public
        self.is_for_scrapers = match.route is not None and match.route.for_scrapers
        self.vhost = match.vhost
        self.queue = match.queue
        self.exchange = match.exchange
        self.queue_json = match.queue_json
        self.names = match.names
        self.query = match.query
        self.credentials = Credentials(head)
        self.account: Account | None = None
        self.is_allowed = False  # the account has been found to have the permission that this route needs
        self.known_version, self.known_peer_kind = -1, -1  # of the accounts when `account` was found, and for whom
        self.content_type = (head.content_type or b"").decode("latin-1")
        media_type = self.content_type.partition(";")[0].strip().lower()
        self.is_json = media_type in _JSON_TYPES
        self.is_hot = self.fast is not None and self.is_json

    def find_account(self, access: Access, call: Call) -> bool:
        """Find out who is asking; False if that takes a password check first."""
        self.is_allowed = False
        self.known_version = -1
        self.account = self.credentials.account_now(access, call)
        if self.account is None:
            return False
        self.known_version, self.known_peer_kind = access.version, call.connection.peer_kind
        return True

    def check(self, access: Access, account: Account, need: Need) -> None:
        """Raises unless this account, who is asking, may do this with the queue of the path."""
        if not self.is_allowed:
            access.check(account, self.vhost, self.queue, need)
            self.is_allowed = account is self.account

    def options(self, kind: type[Any]) -> Any:
        """The query string, as this struct."""
        return convert_query(self.query, kind)


class OneMessageHeads:
    """The heads of requests about one message. Each names another message, so remembering them as they are would only
    drive others out of the cache. This remembers them without the id of the message and its receipt handle: those are
    the head's own, as (message id, query string)."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, ...], Head] = {}

    def learn(self, raw: bytes, head: Head) -> None:
        found = _ONE_MESSAGE.match(raw)
        if found is None or not is_worth_keeping(raw, head) or head.own[0] != found["message_id"].decode():
            return
        if len(self._known) >= _REMEMBERED_SHAPES:
            self._known.clear()
        self._known[_shape(raw, found)] = head

    def recall(self, raw: bytes) -> Head | None:
        found = _ONE_MESSAGE.match(raw)
        known = self._known.get(_shape(raw, found)) if found is not None else None
        if found is None or known is None:
            return None
        head = known.like(known.content_length, (found["message_id"].decode(), (found["query"] or b"")[1:]))
        head.target = found["target"]
        return head


class KeyedHeads:
    """The heads of requests with an idempotency key, remembered without the key."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes], Head] = {}

    def learn(self, raw: bytes, head: Head) -> None:
        found = _KEYED.search(raw)
        is_framed_by_length = not (head.chunked or head.expects_continue)
        if found is None or found["key"] != head.idempotency_key or not is_framed_by_length or not is_short(raw):
            return
        if len(self._known) >= _REMEMBERED_SHAPES:
            self._known.clear()
        self._known[raw[: found.start("key")], raw[found.end("key") :]] = head

    def recall(self, raw: bytes) -> Head | None:
        found = _KEYED.search(raw)
        if found is None:
            return None
        known = self._known.get((raw[: found.start("key")], raw[found.end("key") :]))
        if known is None:
            return None
        head = known.like(known.content_length, known.own)
        head.idempotency_key = found["key"]
        return head


def _shape(raw: bytes, found: re.Match[bytes]) -> tuple[bytes, ...]:
    return found["method"], found["path"], found["action"], raw[found.end() :]
