"""The one place that names concrete parts and puts them together: a process of a server, and a server of several."""

from laneway.node.doors import tls_door
from laneway.node.node import Node, offline
from laneway.node.process import serve

__all__ = ["Node", "offline", "serve", "tls_door"]
