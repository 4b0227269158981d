"""A node as `laneway serve` runs it, on a loop in a thread, and the three ways to speak with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import httpx
from botocore.config import Config as BotoConfig

from laneway.config import Address, Config
from laneway.node import Node
from tests.amqp.wire import Wire as AmqpWire
from tests.in_thread import DEADLINE_S, InThread
from tests.rest.serving import Wire as HttpWire


class WholeNode(InThread):
    """`root` with the password `secret` is its administrator, unless it is to be as new, with guest alone."""

    def __init__(self, folder: Path, *, is_new: bool = False, **settings: Any) -> None:
        super().__init__()
        self._is_new = is_new
        anywhere = Address("127.0.0.1", 0)
        self._config = Config(**{"data": folder, "http": anywhere, "amqp": anywhere, **settings})
        self.node: Node

    async def _start(self) -> None:
        self.node = Node(self._config)
        await self.node.start()
        assert self.node.access is not None
        if not self._is_new:
            await self.node.access.put_account("root", password="secret", roles=["admin"])

    async def _end(self) -> None:
        await self.node.stop()

    def address(self, setting: str) -> tuple[str, int]:
        address = self.node.addresses[setting]
        return address.host, address.port

    @property
    def url(self) -> str:
        host, port = self.address("http")
        return f"http://{host}:{port}"

    def http(self, name: str = "root", password: str = "secret", **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, auth=(name, password), timeout=DEADLINE_S + 10, **options)

    def http_wire(self) -> HttpWire:
        return HttpWire(self.address("http"))

    def amqp_wire(self) -> AmqpWire:
        return AmqpWire(self.address("amqp"))

    def amqp(self, name: str, password: str, **options: Any) -> AmqpWire:
        return self.amqp_wire().log_in(name, password, **options)

    def sqs(self, key: tuple[str, str]) -> Any:
        session = boto3.Session(aws_access_key_id=key[0], aws_secret_access_key=key[1], region_name="us-east-1")
        return session.client(
            "sqs", endpoint_url=self.url, config=BotoConfig(retries={"total_max_attempts": 1}, read_timeout=30)
        )

    def account(self, name: str, password: str = "pw", *permissions: dict[str, Any], roles: Any = None) -> None:
        """Create an account, or change it, over HTTP."""
        body: dict[str, Any] = {"password": password, "permissions": list(permissions)}
        if roles is not None:
            body["roles"] = roles
        with self.http() as root:
            answer = root.put(f"/accounts/{name}", json=body)
            assert answer.status_code in (200, 201), answer.text

    def permit(self, name: str, *permissions: dict[str, Any]) -> None:
        with self.http() as root:
            answer = root.put(f"/accounts/{name}", json={"permissions": list(permissions)})
            assert answer.status_code == 200, answer.text

    def key(self, name: str, kind: str = "api") -> tuple[str, str]:
        with self.http() as root:
            made = root.post(f"/accounts/{name}/keys", json={"kind": kind}).json()
            return made["key_id"], made["key"]

    def new_queue(self, name: str) -> str:
        with self.http() as root:
            assert root.put(f"/queues/{name}").status_code in (200, 201)
        return name


def may(queue: str, *needs: str) -> dict[str, Any]:
    return {"queue": queue, **dict.fromkeys(needs, True)}
