"""AMQP with TLS, and accounts that log in with a certificate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from laneway.config import Address, load_config
from laneway.errors import ConfigInvalid
from laneway.node import Node, tls_door
from tests.amqp.serving import Serving
from tests.amqp.wire import HEADER, Wire, method
from tests.certificates import Certificates


@pytest.fixture(scope="module")
def tls_serving(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    flags = {name: str(file) for name, file in certificates.settings(tls_ca=certificates.ca).items()}
    door = tls_door(load_config(flags, {}), 9)
    with Serving(tmp_path_factory.mktemp("tls"), tls=door) as serving:
        yield serving


def external(wire: Wire) -> None:
    wire.send(HEADER)
    assert "EXTERNAL" in wire.expect("connection.start").fields["mechanisms"].split()
    wire.send(
        method(
            0,
            "connection.start-ok",
            mechanism="EXTERNAL",
            client_properties={"capabilities": {"authentication_failure_close": True}},
        )
    )


def test_a_password_over_tls(tls_serving: Serving, certificates: Certificates) -> None:
    with tls_serving.connect_tls(certificates.client()) as wire:
        wire.log_in()
        assert wire.ask(1, "queue.declare", queue="q").name == "queue.declare-ok"


def test_without_a_certificate_external_is_not_offered(tls_serving: Serving, certificates: Certificates) -> None:
    with tls_serving.connect_tls(certificates.client()) as wire:
        wire.send(HEADER)
        assert wire.expect("connection.start").fields["mechanisms"] == "PLAIN AMQPLAIN"


def test_the_common_name_of_a_certificate_is_the_account(tls_serving: Serving, certificates: Certificates) -> None:
    with tls_serving.connect_tls(certificates.client("robot")) as wire:
        external(wire)
        assert wire.expect("connection.close").fields["text"].startswith("ACCESS_REFUSED - Login was refused")
    tls_serving.run(tls_serving.access.put_account("robot"))
    with tls_serving.connect_tls(certificates.client("robot")) as wire:
        external(wire)
        wire.expect("connection.tune")


def test_who_does_not_speak_tls_learns_nothing(tls_serving: Serving) -> None:
    with Wire(tls_serving.tls_address) as wire:
        wire.send(HEADER)
        assert b"AMQP" not in wire.read_until_closed()


async def _where(flags: dict[str, str]) -> dict[str, Address]:
    async with Node(load_config(flags, {})) as node:
        return dict(node.addresses)


def test_a_node_serves_what_it_is_told_to(certificates: Certificates, tmp_path: Path) -> None:
    flags = {"data": str(tmp_path / "data"), "http": "127.0.0.1:0", "amqp": "localhost:0", "amqps": "127.0.0.1:0"}
    where = asyncio.run(_where(flags))
    assert list(where) == ["http", "amqp"] and where["amqp"].port
    tls = {name: str(file) for name, file in certificates.settings().items()}
    assert list(asyncio.run(_where(flags | tls))) == ["http", "amqp", "amqps"]
    assert list(asyncio.run(_where(flags | tls | {"amqp": "off", "amqps": "off"}))) == ["http"]


def test_localhost_is_both_address_families(own_serving: Callable[..., Serving]) -> None:
    own = own_serving()
    port = own.run(own.server.start("localhost", 0))[1]
    for host in ("127.0.0.1", "::1"):
        with Wire((host, port)) as wire:
            wire.log_in()


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    for flags, field in (
        ({"tls_cert": str(tmp_path / "none.pem")}, "tls_cert"),
        ({"tls_cert": str(tmp_path / "bad.pem")}, "tls_cert"),
        ({"tls_key": str(tmp_path / "key.pem")}, "tls_cert"),
    ):
        with pytest.raises(ConfigInvalid) as refused:
            tls_door(load_config(flags, {}), 9)
        assert refused.value.field == field
    assert tls_door(load_config({}, {}), 9) is None
