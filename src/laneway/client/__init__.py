"""The Python client of Laneway's HTTP API. Imports nothing else of Laneway: it can be lifted out as it is.

from laneway.client import Client

with Client("http://127.0.0.1:8080") as client:
    client.publish("orders", {"id": 1}, priority=8)
    for message in client.receive("orders", wait_seconds=20):
        print(message.payload)
        client.ack("orders", message)
"""

from laneway.client.client import Client
from laneway.client.transport import ClientError, ClientTls
from laneway.client.wire import Message

__all__ = ["Client", "ClientError", "ClientTls", "Message"]
