"""A node that serves TLS beside plain connections."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

from laneway.config import Address
from laneway.frontends.doors.door import Door
from tests.amqp.wire import Wire as AmqpWire
from tests.attacks.whole_node import WholeNode
from tests.certificates import Certificates
from tests.in_thread import DEADLINE_S
from tests.rest.serving import Wire as HttpWire

ANYWHERE = Address("127.0.0.1", 0)


class TlsNode(WholeNode):
    def __init__(self, folder: Path, certificates: Certificates, **settings: Any) -> None:
        super().__init__(folder, https=ANYWHERE, amqps=ANYWHERE, **certificates.settings(**settings))

    @property
    def door(self) -> Door:
        assert self.node.tls is not None
        return self.node.tls

    @property
    def https_url(self) -> str:
        return f"https://localhost:{self.address('https')[1]}"

    def tcp(self, setting: str) -> socket.socket:
        return socket.create_connection(self.address(setting), timeout=DEADLINE_S)

    def tls(self, setting: str, context: ssl.SSLContext) -> ssl.SSLSocket:
        return context.wrap_socket(self.tcp(setting), server_hostname="localhost")

    def https_wire(self, context: ssl.SSLContext) -> HttpWire:
        return HttpWire(self.address("https"), self.tls("https", context))

    def amqps_wire(self, context: ssl.SSLContext) -> AmqpWire:
        return AmqpWire(self.address("amqps"), self.tls("amqps", context))
