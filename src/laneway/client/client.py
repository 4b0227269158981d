"""The client itself: one method for each thing the HTTP API does, in the API's own words."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any
from urllib.parse import quote

import msgspec

from laneway.client.transport import ClientError, ClientTls, Transport
from laneway.client.wire import Message, attributes_to_wire, message_to_wire, without_none

Settled = dict[str, Any] | ClientError
"""The result of one entry of a batch: what the server answered, or why it refused this one."""

PAGE = 100


class Client:
    """A synchronous client. May be used from several threads; close it, or use it in a `with` statement.

    Connection errors are retried where a request surely was not sent or can be repeated without harm: reading, and
    publishing, which carries an Idempotency-Key for that purpose.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        key: str | None = None,
        user: str | None = None,
        password: str | None = None,
        vhost: str = "/",
        ca: str | None = None,
        cert: str | None = None,
        cert_key: str | None = None,
        timeout_seconds: float = 30.0,
        attempts: int = 3,
    ) -> None:
        """`ca`, `cert` and `cert_key` are PEM files for https:// addresses: who signed the server's certificate, if
        this machine does not know them, and a certificate of one's own with its key, if the server wants one."""
        self.vhost = vhost
        self._transport = Transport(
            url,
            tls=ClientTls(ca, cert, cert_key),
            key=key,
            user=user,
            password=password,
            timeout_seconds=timeout_seconds,
            attempts=attempts,
        )
        self._call = self._transport.call

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    # --- queues

    def put_queue(self, queue: str, **settings: object) -> dict[str, Any]:
        """Create a queue, or replace the settings of the one there is."""
        return dict(self._call("PUT", self._path(queue), body=settings, repeatable=True))

    def change_queue(self, queue: str, **settings: object) -> dict[str, Any]:
        """Change the given settings; None sets one back to "no limit" where that is allowed."""
        return dict(self._call("PATCH", self._path(queue), body=settings, repeatable=True))

    def queue(self, queue: str) -> dict[str, Any]:
        return dict(self._call("GET", self._path(queue)))

    def queues(self, prefix: str = "", *, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """All queues of the virtual host, in order of their names, fetched page by page."""
        return self._pages(self._path(), "queues", {"prefix": prefix or None}, limit)

    def delete_queue(self, queue: str, *, if_empty: bool = False) -> None:
        self._call("DELETE", self._path(queue), query={"if_empty": "true" if if_empty else None})

    def purge(self, queue: str) -> int:
        """Delete every message that waits; how many those were."""
        return int(self._call("POST", self._path(queue, "purge"))["purged"])

    def stats(self, queue: str) -> dict[str, Any]:
        return dict(self._call("GET", self._path(queue, "stats")))

    # --- messages

    def publish(
        self,
        queue: str,
        payload: object,
        *,
        content_type: str | None = None,
        priority: int | None = None,
        delay_seconds: float | None = None,
        deliver_at: datetime | str | None = None,
        ttl_seconds: float | None = None,
        attributes: Mapping[str, object] | None = None,
        correlation_id: str | None = None,
        group: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
        dedup_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> dict[str, Any]:
        """Publish one message; returns once it is durable. Bytes are published as they are, all else as JSON."""
        message = message_to_wire(
            payload,
            content_type=content_type,
            priority=priority,
            delay_seconds=delay_seconds,
            deliver_at=deliver_at,
            ttl_seconds=ttl_seconds,
            attributes=attributes,
            correlation_id=correlation_id,
            group=group,
            key=key,
            tenant=tenant,
            dedup_id=dedup_id,
        )
        return dict(self._publish(queue, message, idempotency_key))

    def publish_batch(
        self, queue: str, messages: Iterable[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> list[Settled]:
        """Publish up to 1000 messages, each a mapping of `publish`'s arguments; one result for each, in order."""
        wire = [message_to_wire(**message) for message in messages]
        return _results(self._publish(queue, wire, idempotency_key))

    def _publish(self, queue: str, body: object, idempotency_key: str | None) -> Any:
        headers = {"idempotency-key": idempotency_key or secrets.token_urlsafe(18)}
        return self._call("POST", self._path(queue, "messages"), body=body, headers=headers, repeatable=True)

    def receive(
        self,
        queue: str,
        max_messages: int = 1,
        *,
        wait_seconds: float = 0,
        visibility_timeout: float | None = None,
        consumer_id: str | None = None,
    ) -> list[Message]:
        """Lease up to so many messages, waiting for the first one if there is none yet."""
        body = {
            "max_messages": max_messages,
            "wait_seconds": wait_seconds,
            "visibility_timeout": visibility_timeout,
            "consumer_id": consumer_id,
        }
        answer = self._call("POST", self._path(queue, "dequeue"), body=without_none(body), wait_seconds=wait_seconds)
        return [Message.from_wire(raw) for raw in answer["messages"]]

    def ack(self, queue: str, message: Message) -> None:
        self._call("DELETE", self._of(queue, message), body=_handle(message))

    def release(
        self, queue: str, message: Message, *, delay_seconds: float | None = None, backoff: bool = False
    ) -> dict[str, Any]:
        """Give a message back: now, after a delay, or after a time that doubles with each receive."""
        body = _handle(message, delay_seconds=delay_seconds, backoff=backoff or None)
        return dict(self._call("POST", self._of(queue, message, "nack"), body=body))

    def reject(self, queue: str, message: Message, *, reason: str | None = None) -> None:
        """Make it a dead letter at once."""
        self._call("POST", self._of(queue, message, "reject"), body=_handle(message, reason=reason))

    def extend(self, queue: str, message: Message, visibility_timeout: float) -> dict[str, Any]:
        """Let the lease end so many seconds from now; 0 gives the message back."""
        body = _handle(message, visibility_timeout=visibility_timeout)
        return dict(self._call("PATCH", self._of(queue, message, "visibility"), body=body))

    # The batch forms take messages, or receipt handles alone, and answer one result for each, in order.

    def ack_batch(self, queue: str, messages: Sequence[Message | str]) -> list[Settled]:
        return self._settle(queue, "ack", messages)

    def release_batch(
        self,
        queue: str,
        messages: Sequence[Message | str],
        *,
        delay_seconds: float | None = None,
        backoff: bool = False,
    ) -> list[Settled]:
        return self._settle(queue, "nack", messages, delay_seconds=delay_seconds, backoff=backoff or None)

    def reject_batch(
        self, queue: str, messages: Sequence[Message | str], *, reason: str | None = None
    ) -> list[Settled]:
        return self._settle(queue, "reject", messages, reason=reason)

    def extend_batch(self, queue: str, messages: Sequence[Message | str], visibility_timeout: float) -> list[Settled]:
        return self._settle(queue, "visibility", messages, visibility_timeout=visibility_timeout)

    def _settle(self, queue: str, form: str, messages: Sequence[Message | str], **options: object) -> list[Settled]:
        body = [_handle(message, **options) for message in messages]
        return _results(self._call("POST", self._path(queue, form), body=body))

    def peek(
        self,
        queue: str,
        *,
        states: Sequence[str] = ("ready",),
        priority: int | None = None,
        attribute: tuple[str, str] | None = None,
        older_than_seconds: float | None = None,
        newer_than_seconds: float | None = None,
        reason: str | None = None,
        limit: int | None = 50,
    ) -> Iterator[Message]:
        """Look at messages without leasing them, fetched page by page."""
        query = {
            "state": ",".join(states),
            "priority": priority,
            "attribute": None if attribute is None else ":".join(attribute),
            "older_than_seconds": older_than_seconds,
            "newer_than_seconds": newer_than_seconds,
            "reason": reason,
        }
        return (Message.from_wire(raw) for raw in self._pages(self._path(queue, "messages"), "messages", query, limit))

    # --- dead letters and tasks

    def redrive(
        self,
        queue: str,
        *,
        message_ids: Sequence[str] | None = None,
        reason: str | None = None,
        attribute: tuple[str, str] | None = None,
        older_than_seconds: float | None = None,
        newer_than_seconds: float | None = None,
        target: str | None = None,
        max_per_second: int | None = None,
    ) -> dict[str, Any]:
        """Begin to move dead letters back to where they came from, or to a target; the task that does it."""
        body = {
            **_dead_letter_filter(message_ids, reason, attribute, older_than_seconds, newer_than_seconds),
            **without_none({"target": target, "max_per_second": max_per_second}),
        }
        return dict(self._call("POST", self._path(queue, "redrive"), body=body))

    def delete_dead_letters(
        self,
        queue: str,
        *,
        message_ids: Sequence[str] | None = None,
        reason: str | None = None,
        attribute: tuple[str, str] | None = None,
        older_than_seconds: float | None = None,
        newer_than_seconds: float | None = None,
        all: bool = False,
    ) -> int:
        """Delete the dead letters that match; `all=True` is needed where nothing narrows them down."""
        body = _dead_letter_filter(message_ids, reason, attribute, older_than_seconds, newer_than_seconds)
        if all:
            body["all"] = True
        return int(self._call("POST", self._path(queue, "dead-letters", "delete"), body=body)["deleted"])

    def tasks(self, queue: str) -> list[dict[str, Any]]:
        """The redrives of a queue, running and past."""
        return list(self._call("GET", self._path(queue, "redrive"))["tasks"])

    def task(self, task_id: str) -> dict[str, Any]:
        return dict(self._call("GET", f"/tasks/{_quoted(task_id)}"))

    def cancel_task(self, task_id: str) -> dict[str, Any]:
        return dict(self._call("POST", f"/tasks/{_quoted(task_id)}/cancel", repeatable=True))

    # --- exchanges and bindings; the default exchange is called amq.default

    def put_exchange(self, exchange: str, **settings: object) -> dict[str, Any]:
        """Declare an exchange, or find it as it is; refused if it is another."""
        return dict(self._call("PUT", self._exchange(exchange), body=without_none(settings), repeatable=True))

    def exchange(self, exchange: str) -> dict[str, Any]:
        return dict(self._call("GET", self._exchange(exchange)))

    def exchanges(self, prefix: str = "", *, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """All exchanges of the virtual host, in order of their names, fetched page by page."""
        return self._pages(self._exchange(), "exchanges", {"prefix": prefix or None}, limit)

    def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        self._call("DELETE", self._exchange(exchange), query={"if_unused": "true" if if_unused else None})

    def publish_to_exchange(
        self,
        exchange: str,
        routing_key: str,
        payload: object,
        *,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Publish one message through an exchange, with `publish`'s options; whether, and to which queues, it went."""
        body = {**message_to_wire(payload, **options), "routing_key": routing_key}
        headers = {"idempotency-key": idempotency_key or secrets.token_urlsafe(18)}
        path = self._exchange(exchange, "publish")
        return dict(self._call("POST", path, body=body, headers=headers, repeatable=True))

    def route(
        self, exchange: str, routing_key: str = "", *, attributes: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        """Which queues a message would reach, and why; nothing is published."""
        body = {"routing_key": routing_key, "attributes": attributes_to_wire(attributes or {})}
        return dict(self._call("POST", self._exchange(exchange, "route"), body=body, repeatable=True))

    def bind(
        self,
        exchange: str,
        destination: str,
        routing_key: str = "",
        *,
        arguments: Mapping[str, object] | None = None,
        to_exchange: bool = False,
    ) -> dict[str, Any]:
        """Bind a queue, or another exchange, to an exchange."""
        body = {"routing_key": routing_key, "arguments": attributes_to_wire(arguments or {})}
        path = self._binding(exchange, destination, to_exchange)
        return dict(self._call("POST", path, body=body, repeatable=True))

    def unbind(
        self,
        exchange: str,
        destination: str,
        routing_key: str = "",
        *,
        arguments: Mapping[str, object] | None = None,
        to_exchange: bool = False,
    ) -> None:
        body = {"routing_key": routing_key, "arguments": attributes_to_wire(arguments or {})}
        self._call("DELETE", self._binding(exchange, destination, to_exchange), body=body)

    def bindings(self, *, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """All bindings of the virtual host but those of the default exchange, fetched page by page."""
        return self._pages(f"/bindings/{_quoted(self.vhost)}", "bindings", {}, limit)

    # --- virtual hosts

    def vhosts(self) -> list[dict[str, Any]]:
        """Those in which the account has permissions."""
        return list(self._call("GET", "/vhosts")["vhosts"])

    def create_vhost(self, name: str) -> dict[str, Any]:
        """Make a virtual host; one that exists stays as it is."""
        return dict(self._call("PUT", f"/vhosts/{_quoted(name)}", repeatable=True))

    def delete_vhost(self, name: str) -> None:
        """With its queues and exchanges."""
        self._call("DELETE", f"/vhosts/{_quoted(name)}")

    # --- moves of queues between partitions

    def rebalance(
        self, queue: str | None = None, *, to: int | None = None, all: bool = False, dry_run: bool = False
    ) -> dict[str, Any]:
        """Move the queues that are not at home there; or one queue to its home, or to a partition. Which ones move."""
        body: dict[str, Any] = {"all": all, "dry_run": dry_run}
        if queue is not None:
            body |= {"queue_name": queue, "vhost": self.vhost}
        if to is not None:
            body["to"] = to
        return dict(self._call("POST", "/rebalance", body=body, repeatable=True))

    def rebalance_status(self) -> dict[str, Any]:
        """How far the moves are."""
        return dict(self._call("GET", "/rebalance"))

    def cancel_rebalance(self) -> int:
        """Leave queues that have not begun to move where they are; how many."""
        return int(self._call("DELETE", "/rebalance")["cancelled"])

    # --- the rebalancing plan

    def rebalancing(self) -> dict[str, Any]:
        """The plan that the server keeps, who gave it and when."""
        return dict(self._call("GET", "/rebalancing"))

    def put_rebalancing(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Keep a plan, in place of the one there is."""
        return dict(self._call("PUT", "/rebalancing", body=dict(plan), repeatable=True))

    def delete_rebalancing(self) -> None:
        self._call("DELETE", "/rebalancing")

    # --- batches that are published exactly once

    def stage_part(self, producer: str, stage: str, part: str, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Stage messages of a batch, each with a body (bytes) and a queue, or an exchange and a routing_key."""
        path = f"/producers/{_quoted(producer)}/stages/{_quoted(stage)}/parts/{_quoted(part)}"
        return dict(
            self._call(
                "PUT",
                path,
                content=msgspec.msgpack.encode(messages),
                headers={"content-type": "application/msgpack"},
                repeatable=True,
            )
        )

    def commit_batch(
        self,
        producer: str,
        batch: int,
        stage: str,
        parts: Sequence[str],
        *,
        temporary: bool = False,
        mandatory: bool = False,
    ) -> dict[str, Any]:
        """Publish staged parts, in this order, in one commit; once, however often it is asked for. Mandatory: nothing
        of it if a message would reach no queue."""
        body = {"stage": stage, "parts": list(parts), "temporary": temporary, "mandatory": mandatory}
        path = f"/producers/{_quoted(producer)}/batches/{batch}/commit"
        return dict(self._call("POST", path, body=body, repeatable=True))

    def give_up_stage(self, producer: str, stage: str) -> None:
        """Forget what is staged and not committed."""
        self._call("DELETE", f"/producers/{_quoted(producer)}/stages/{_quoted(stage)}", repeatable=True)

    def producer(self, producer: str) -> dict[str, Any]:
        return dict(self._call("GET", f"/producers/{_quoted(producer)}"))

    def producers(self) -> list[dict[str, Any]]:
        """One's own; an admin sees all."""
        return list(self._call("GET", "/producers")["producers"])

    def delete_producer(self, producer: str) -> None:
        """Forget its last batch: it may begin again with any number."""
        self._call("DELETE", f"/producers/{_quoted(producer)}")

    # --- accounts

    def whoami(self) -> dict[str, Any]:
        return dict(self._call("GET", "/whoami"))

    def accounts(self) -> list[dict[str, Any]]:
        return list(self._call("GET", "/accounts")["accounts"])

    def account(self, name: str) -> dict[str, Any]:
        return dict(self._call("GET", f"/accounts/{_quoted(name)}"))

    def put_account(
        self,
        name: str,
        *,
        password: str | None = None,
        roles: Sequence[str] | None = None,
        permissions: Sequence[Mapping[str, object]] | None = None,
    ) -> dict[str, Any]:
        """Create an account or change it; what is None stays as it is."""
        body = without_none({"password": password, "roles": roles, "permissions": permissions})
        return dict(self._call("PUT", f"/accounts/{_quoted(name)}", body=body, repeatable=True))

    def delete_account(self, name: str) -> None:
        self._call("DELETE", f"/accounts/{_quoted(name)}")

    def keys(self, account: str) -> list[dict[str, Any]]:
        return list(self._call("GET", f"/accounts/{_quoted(account)}/keys")["keys"])

    def create_key(self, account: str, label: str = "", kind: str = "api") -> dict[str, Any]:
        """A new API key, or with the kind aws an access key id and its secret; the answer is the only place where the
        key or the secret is ever shown."""
        return dict(self._call("POST", f"/accounts/{_quoted(account)}/keys", body={"label": label, "kind": kind}))

    def delete_key(self, account: str, key_id: str) -> None:
        self._call("DELETE", f"/accounts/{_quoted(account)}/keys/{_quoted(key_id)}")

    # --- connections

    def connections(
        self, *, protocol: str | None = None, account: str | None = None, limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """The oldest first: all for an administrator, else one's own; fetched page by page."""
        return self._pages("/connections", "connections", {"protocol": protocol, "account": account}, limit)

    def connection(self, connection_id: str) -> dict[str, Any]:
        return dict(self._call("GET", f"/connections/{_quoted(connection_id)}"))

    def channels(self, connection_id: str, *, limit: int | None = None) -> Iterator[dict[str, Any]]:
        return self._pages(f"/connections/{_quoted(connection_id)}/channels", "channels", {}, limit)

    def consumers_of(self, connection_id: str, *, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """The consumers of a connection."""
        return self._pages(f"/connections/{_quoted(connection_id)}/consumers", "consumers", {}, limit)

    def consumers(self, queue: str, *, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """The AMQP consumers of a queue."""
        return self._pages(self._path(queue, "consumers"), "consumers", {}, limit)

    def close_connection(self, connection_id: str, *, reason: str | None = None) -> None:
        """Its client is told so in its own protocol."""
        self._call("DELETE", f"/connections/{_quoted(connection_id)}", query={"reason": reason})

    def close_channel(self, connection_id: str, channel: int, *, reason: str | None = None) -> None:
        """What it held goes back to its queues."""
        path = f"/connections/{_quoted(connection_id)}/channels/{channel}"
        self._call("DELETE", path, query={"reason": reason})

    def cancel_consumer(self, connection_id: str, consumer: int, *, reason: str | None = None) -> None:
        """What it holds it may still settle."""
        path = f"/connections/{_quoted(connection_id)}/consumers/{consumer}"
        self._call("DELETE", path, query={"reason": reason})

    # --- the history

    def journal(self, partition: int = 0) -> dict[str, Any]:
        """Where the history of a partition begins and ends, its segments, and alarms about it."""
        return dict(self._call("GET", "/journal", query={"partition": partition or None}))

    def cursors(self) -> list[dict[str, Any]]:
        return list(self._call("GET", "/journal/cursors"))

    def put_cursor(self, name: str, position: int | Mapping[int, int], *, rewind: bool = False) -> dict[str, Any]:
        """Keep history from a position on, and let go of what is before it. Forward only, unless rewind is given. Of a
        server with several partitions, a position for each."""
        where = {"position": position} if isinstance(position, int) else {"positions": dict(position)}
        body = {**where, "rewind": rewind}
        return dict(self._call("PUT", f"/journal/cursors/{_quoted(name)}", body=body, repeatable=True))

    def delete_cursor(self, name: str) -> None:
        self._call("DELETE", f"/journal/cursors/{_quoted(name)}")

    # --- the server

    def reload_config(self) -> dict[str, Any]:
        """Have the server read its settings again: those that changed, and those that need a restart for it."""
        return dict(self._call("POST", "/config/reload"))

    def processes(self, *, queues: int = 10, sort: str = "rate") -> dict[str, Any]:
        """What each process and partition of the server has to do, and so many of the busiest queues; or of the first
        ones by depth, age or dead_letters."""
        return dict(self._call("GET", "/processes", query={"queues": queues, "sort": sort}))

    def alerts(self) -> list[dict[str, Any]]:
        """What fires, and since when."""
        return list(self._call("GET", "/alerts")["alerts"])

    def ready(self) -> dict[str, Any]:
        return dict(self._call("GET", "/readyz"))

    def info(self) -> dict[str, Any]:
        return dict(self._call("GET", "/"))

    # --- paths

    def _path(self, *parts: str) -> str:
        head = "/queues" if self.vhost == "/" else f"/vhosts/{_quoted(self.vhost)}/queues"
        return "/".join([head, *(_quoted(part) for part in parts)])

    def _exchange(self, *parts: str) -> str:
        return "/".join(["/exchanges", _quoted(self.vhost), *(_quoted(part) for part in parts)])

    def _binding(self, exchange: str, destination: str, to_exchange: bool) -> str:
        kind = "e" if to_exchange else "q"
        return "/".join(["/bindings", _quoted(self.vhost), "e", _quoted(exchange), kind, _quoted(destination)])

    def _of(self, queue: str, message: Message, *rest: str) -> str:
        return self._path(queue, "messages", message.message_id, *rest)

    def _pages(self, path: str, items: str, query: Mapping[str, object], limit: int | None) -> Iterator[dict[str, Any]]:
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            page = self._call("GET", path, query={**query, "limit": min(PAGE, left or PAGE), "cursor": cursor})
            yield from page[items]
            cursor = page.get("next_cursor")
            if cursor is None:
                return
            if left is not None:
                left -= len(page[items])


def _quoted(part: str) -> str:
    # A name of dots alone would be taken for "this folder" or "the one above" on its way to the server.
    return quote(part, safe="") if part.strip(".") else part.replace(".", "%2E")


def _handle(message: Message | str, **options: object) -> dict[str, Any]:
    if isinstance(message, str):
        return without_none({"receipt_handle": message, **options})
    if message.receipt_handle is None:
        raise ValueError(f"message {message.message_id} was peeked at, not received: there is no lease to settle")
    return without_none({"message_id": message.message_id, "receipt_handle": message.receipt_handle, **options})


def _results(entries: list[dict[str, Any]]) -> list[Settled]:
    return [ClientError.from_answer(entry["error"], status=207) if "error" in entry else entry for entry in entries]


def _dead_letter_filter(
    message_ids: Sequence[str] | None,
    reason: str | None,
    attribute: tuple[str, str] | None,
    older_than_seconds: float | None,
    newer_than_seconds: float | None,
) -> dict[str, Any]:
    return without_none(
        {
            "message_ids": None if message_ids is None else list(message_ids),
            "reason": reason,
            "attribute": None if attribute is None else {"name": attribute[0], "value": attribute[1]},
            "older_than_seconds": older_than_seconds,
            "newer_than_seconds": newer_than_seconds,
        }
    )
