"""What every test shares: how hypothesis behaves on machines whose speed varies, and who runs which test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.certificates import Certificates
from tests.postgres import PostgresServer

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

# A deadline per example measures the machine, not the code; pytest-timeout bounds each test as a whole.
settings.register_profile("laneway", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("laneway")

#: Where the long tests are, the longest first: whoever begins with them is not left alone with one at the end.
LONG = ("tests/pipeline/", "tests/simulation/", "tests/crash/", "tests/cli/", "tests/journal/", "tests/demo/")

#: Tests that share one Spark, but for the file that starts a cluster of its own.
SPARK, CLUSTER = "tests/pipeline/", "tests/pipeline/test_cluster.py"


def pytest_configure() -> None:
    """A shell that starts the tests in the background has them ignore Ctrl-C, and so would every program they start."""
    if os.environ.get("LANEWAY_TEST_BROKER"):
        from tests.wire_serve import wrap_nodes

        wrap_nodes()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {folder: rank for rank, folder in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get("/".join(item.nodeid.split("/")[:2]) + "/", len(LONG)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """With --dist loadfile a file is one worker's, so that what its tests share is made once; and one worker has all
    tests that share a Spark, whose start and warming up cost more than most of them."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return SPARK if file.startswith(SPARK) and file != CLUSTER else file

    return ByFile(config, log)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One for all who only want a database of their own, and leave it running."""
    server = PostgresServer()
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority, a certificate of a server's and one of a client's. Nobody changes them: a test that does makes
    its own."""
    return Certificates(tmp_path_factory.mktemp("certificates"))
