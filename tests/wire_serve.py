"""`laneway` with front ends that reach their broker through bytes: `python -m tests.wire_serve serve --data …`."""

from __future__ import annotations

import os
import sys

from laneway.cli import main
from laneway.node import Node
from tests.wire_broker import for_tests


def wrap_nodes() -> None:
    """Every Node of this process wraps its broker as the environment says, unless it is told otherwise."""
    defaults = Node.__init__.__kwdefaults__
    assert defaults is not None and "wrap" in defaults
    defaults["wrap"] = for_tests


def server_module() -> str:
    """What to run as a server: this, if the tests are to go through bytes."""
    return "tests.wire_serve" if os.environ.get("LANEWAY_TEST_BROKER") in ("wire", "socket", "edge") else "laneway"


def server_options() -> tuple[str, ...]:
    """With LANEWAY_TEST_BROKER=processes a server is two processes, and each has half of the queues."""
    several = os.environ.get("LANEWAY_TEST_BROKER") == "processes"
    return ("--processes", "2", "--partitions", "2") if several else ()


if __name__ == "__main__":
    wrap_nodes()
    sys.exit(main())
