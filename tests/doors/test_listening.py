"""Where a node listens, and where it refuses to."""

from __future__ import annotations

import asyncio
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from laneway.config import Address, Config, Networks
from laneway.errors import ConfigInvalid
from laneway.node import Node
from tests.certificates import Certificates

HERE, EVERYWHERE = Address("127.0.0.1", 0), Address("0.0.0.0", 0)


async def _serve(settings: dict[str, Any], account: str | None) -> list[str]:
    if account is not None:
        async with Node(Config(data=settings["data"], http=HERE, amqp=None)) as node:
            assert node.access is not None
            await node.access.put_account(account, password="pw", roles=["admin"])
    async with Node(Config(**{"http": HERE, "amqp": None, "amqps": None, **settings})) as node:
        return [setting for setting, address in node.addresses.items() if not address.is_loopback]


def serve(tmp_path: Path, account: str | None = "root", **settings: Any) -> list[str]:
    """What is served beyond loopback."""
    return asyncio.run(_serve({"data": tmp_path / "data", **settings}, account))


@pytest.mark.parametrize("setting", ["http", "amqp"])
def test_plain_listening_beyond_loopback_must_be_allowed(setting: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        serve(tmp_path, **{setting: EVERYWHERE})
    assert refused.value.field == setting
    for words in ("not encrypted", f"--{setting}s", "--plain-beyond-loopback", "LANEWAY_PLAIN_BEYOND_LOOPBACK"):
        assert words in refused.value.message.replace("nothing is encrypted", "not encrypted")
    assert serve(tmp_path, None, **{setting: EVERYWHERE}, plain_beyond_loopback=True) == [setting]


def test_tls_beyond_loopback_needs_an_account_and_no_permission(tmp_path: Path, certificates: Certificates) -> None:
    tls = certificates.settings()
    for setting in ("https", "amqps"):
        folder = tmp_path / setting
        folder.mkdir()
        with pytest.raises(ConfigInvalid, match="guest"):
            serve(folder, None, **{setting: EVERYWHERE}, **tls)
        assert serve(folder, **{setting: EVERYWHERE}, **tls) == [setting]


def test_guest_alone_is_not_let_out_by_a_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="guest"):
        serve(tmp_path, None, http=EVERYWHERE, plain_beyond_loopback=True)


@pytest.mark.parametrize(("account", "warns"), [(None, True), ("root", False)])
def test_start_warns_that_nobody_can_log_in_through_the_proxies(
    account: str | None, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serve(tmp_path, account, trusted_proxies=Networks((ip_network("127.0.0.1"),)))
    said = [record.getMessage() for record in caplog.records if "trusted_proxies" in record.getMessage()]
    assert bool(said) == warns
    assert all(f"account create NAME --role admin --data {tmp_path / 'data'}" in line for line in said)


def test_tls_without_a_certificate_names_the_setting_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="https needs tls_cert"):
        serve(tmp_path, https=HERE)
