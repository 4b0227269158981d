"""Settings: where each comes from, what wins, what is said when one is wrong, and that all are documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.config import Address, Config, load_config, settings
from laneway.errors import ConfigInvalid

DOCS = Path(__file__).parent.parent / "docs" / "configuration.md"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refusal(flags: dict[str, str] | None = None, env: dict[str, str] | None = None, file: Path | None = None) -> str:
    with pytest.raises(ConfigInvalid) as refused:
        load_config(flags or {}, env or {}, file)
    return refused.value.message


def test_without_anything_the_defaults_hold() -> None:
    config = load_config({}, {"PATH": "/bin"})
    assert config.data == Path("data")
    assert config.http == Address("127.0.0.1", 8080)
    assert config.durability == "commit"
    assert config.max_queues == 200_000
    assert set(config.origins) == {setting.name for setting in settings()}
    assert set(config.origins.values()) == {"default"}


def test_a_flag_wins_over_a_variable_over_the_file_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text("max_queues = 1\nmax_connections = 1\nmax_header_count = 10\n")
    env = {"LANEWAY_MAX_QUEUES": "2", "LANEWAY_MAX_CONNECTIONS": "2"}
    config = load_config({"max_queues": "3"}, env, file)
    assert (config.max_queues, config.max_connections, config.max_header_count) == (3, 2, 10)
    assert config.origins["max_queues"] == "flag --max-queues"
    assert config.origins["max_connections"] == "variable LANEWAY_MAX_CONNECTIONS"
    assert config.origins["max_header_count"] == f"file {file}"
    assert config.origins["http"] == "default"


def test_the_file_is_the_given_one_or_the_named_one_or_the_one_in_this_folder(tmp_path: Path) -> None:
    for name, count in (("laneway.toml", 1), ("named.toml", 2), ("given.toml", 3)):
        (tmp_path / name).write_text(f"max_queues = {count}")
    named = {"LANEWAY_CONFIG": "named.toml"}
    assert load_config({}, {}).max_queues == 1
    assert load_config({}, named).max_queues == 2
    assert load_config({}, named, tmp_path / "given.toml").max_queues == 3


def test_a_file_that_was_asked_for_must_be_there_and_readable(tmp_path: Path) -> None:
    assert "gone.toml cannot be read: No such file" in refusal(file=Path("gone.toml"))
    assert "gone.toml cannot be read" in refusal(env={"LANEWAY_CONFIG": "gone.toml"})
    (tmp_path / "bad.toml").write_text("max_queues = = 1")
    assert "bad.toml is not valid TOML" in refusal(file=Path("bad.toml"))
    (tmp_path / "bad.toml").write_bytes(b"\xff")
    assert "bad.toml is not valid TOML" in refusal(file=Path("bad.toml"))


def test_every_setting_can_be_given_in_every_way(tmp_path: Path) -> None:
    for setting in settings():
        value = setting.choices[-1] if setting.choices else setting.show(setting.default)
        quoted = value if setting.kind in (int, float) and re.fullmatch(r"[0-9.]+", value) else f'"{value}"'
        file = tmp_path / "one.toml"
        file.write_text(f"{setting.name} = {quoted}")
        by_flag = load_config({setting.name: value}, {})
        by_variable = load_config({}, {setting.variable: value})
        by_file = load_config({}, {}, file)
        values = [getattr(config, setting.name) for config in (by_flag, by_variable, by_file)]
        assert values[0] == values[1] == values[2], setting.name
        if not setting.choices:
            assert values[0] == setting.default
        for config, kind in ((by_flag, "flag"), (by_variable, "variable"), (by_file, "file")):
            assert config.origins[setting.name].startswith(kind)


def test_every_default_lies_in_its_own_range() -> None:
    for setting in settings():
        if setting.lowest is not None and setting.highest is not None:
            assert setting.lowest <= setting.default <= setting.highest, setting.name


def test_an_unknown_key_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text("durabilty = 'commit'")
    message = refusal(file=file)
    assert "'durabilty'" in message and str(file) in message and "did you mean durability?" in message
    assert "LANEWAY_HTPP: did you mean LANEWAY_HTTP?" in refusal(env={"LANEWAY_HTPP": "x"})
    assert "flag --dat): did you mean data?" in refusal({"dat": "x"})
    assert "`laneway config` lists" in refusal({"zzz": "x"})
    file.write_text("[http]\nport = 1")
    assert "http must be" in refusal(file=file)


@pytest.mark.parametrize(
    "variable",
    [
        "LANEWAY_SERVICE_HOST",
        "LANEWAY_SERVICE_PORT_HTTP",
        "LANEWAY_EU_SERVICE_PORT",
        "LANEWAY_PORT",
        "LANEWAY_PORT_8080_TCP_ADDR",
        "LANEWAY_TEST_SEED",
        "LANEWAY_URL",
        "LANEWAY_KEY",
    ],
)
def test_variables_that_others_set_under_the_same_prefix_are_left_alone(variable: str) -> None:
    assert set(load_config({}, {variable: "tcp://10.0.0.1:8080"}).origins.values()) == {"default"}


def test_a_port_variable_that_describes_no_service_is_a_mistake() -> None:
    assert "LANEWAY_HTTP_PORT: did you mean LANEWAY_HTTP?" in refusal(env={"LANEWAY_HTTP_PORT": "9090"})


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert load_config({}, {"LANEWAY_HTTP": ""}).origins["http"] == "default"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("max_queues", "many", "max_queues must be a whole number from 1 to 10000000, not 'many' (flag --max-queues)"),
        ("max_queues", "0", "max_queues must be from 1 to 10000000, not '0'"),
        ("max_queues", "1.5", "whole number"),
        ("request_timeout_seconds", "nan", "must be from 0.1 to 3600"),
        ("request_timeout_seconds", "inf", "must be from 0.1 to 3600"),
        ("segment_bytes", "64TB", "must be a whole number from 1MiB"),
        ("segment_bytes", "-1", "must be a whole number from 1MiB"),
        ("durability", "always", "durability must be commit or interval or none, not 'always'"),
        ("http", "8080", "http must be HOST:PORT"),
        ("http", "localhost:99999", "a port from 0 to 65535"),
        ("http", "::1:8080", "http must be HOST:PORT"),
        ("http", "[host]:8080", "IPv6 address between its brackets"),
        ("trusted_proxies", "10.0.0.0/8, proxy", "must be addresses and networks as 10.0.0.0/8 ('proxy' does not"),
        ("trusted_proxies", "10.0.0.1/8", "10.0.0.1/8 has host bits set"),
        ("data", "", "data must be DIR"),
        ("data", "a\0b", "zero byte"),
    ],
)
def test_a_wrong_value_is_named_with_its_setting_and_origin(name: str, value: str, says: str) -> None:
    message = refusal({name: value})
    assert says in message
    assert message.endswith(f"(flag --{name.replace('_', '-')})")


@pytest.mark.parametrize("line", ["max_queues = true", "max_queues = 1.0", "data = 1", "log_level = 3", "http = []"])
def test_a_value_of_the_wrong_type_in_the_file_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "some.toml"
    file.write_text(line)
    assert line.split()[0] + " must be" in refusal(file=file)


@pytest.mark.parametrize(
    ("text", "count"),
    [("1048576", 1 << 20), ("1MiB", 1 << 20), ("2 mb", 2 << 20), ("1024k", 1 << 20), ("1_048_576", 1 << 20)],
)
def test_sizes_may_have_units(text: str, count: int) -> None:
    assert load_config({"segment_bytes": text}, {}).segment_bytes == count


@given(st.integers(1 << 20, 1 << 30))
def test_a_size_as_it_is_shown_is_read_back_as_it_was(count: int) -> None:
    setting = next(setting for setting in settings() if setting.name == "segment_bytes")
    assert load_config({"segment_bytes": setting.show(count)}, {}).segment_bytes == count


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("127.0.0.1:80", Address("127.0.0.1", 80), True),
        ("127.9.9.9:80", Address("127.9.9.9", 80), True),
        ("localhost:0", Address("localhost", 0), True),
        ("[::1]:80", Address("::1", 80), True),
        ("[0:0::1]:80", Address("::1", 80), True),
        ("0.0.0.0:80", Address("0.0.0.0", 80), False),
        ("[::]:80", Address("::", 80), False),
        ("queue.example:80", Address("queue.example", 80), False),
        ("localhost.example:80", Address("localhost.example", 80), False),
    ],
)
def test_addresses(text: str, address: Address, loopback: bool) -> None:
    parsed = load_config({"http": text}, {}).http
    assert parsed == address
    assert parsed.is_loopback is loopback
    assert load_config({"http": str(parsed)}, {}).http == address


@pytest.mark.parametrize(
    ("text", "shown"),
    [("off", "off"), ("127.0.0.1", "127.0.0.1"), ("10.0.0.0/8,::1 , 192.168.0.7/32", "10.0.0.0/8, ::1, 192.168.0.7")],
)
def test_networks(text: str, shown: str) -> None:
    parsed = load_config({"trusted_proxies": text}, {}).trusted_proxies
    assert str(parsed) == shown
    assert load_config({"trusted_proxies": shown}, {}).trusted_proxies == parsed


def test_networks_may_be_a_list_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_text('trusted_proxies = ["127.0.0.1", "10.0.0.0/8"]')
    assert str(load_config({}, {}, tmp_path / "some.toml").trusted_proxies) == "127.0.0.1, 10.0.0.0/8"


def test_every_setting_is_documented_with_its_default_and_names() -> None:
    text = DOCS.read_text()
    for setting in settings():
        row = re.search(rf"^\| `{setting.name}` \|.*$", text, re.MULTILINE)
        assert row, f"docs/configuration.md has no row for {setting.name}"
        for part in (setting.variable, setting.flag, setting.show(setting.default)):
            assert f"`{part}`" in row[0], f"the row of {setting.name} in docs/configuration.md does not name `{part}`"


def test_nothing_is_documented_that_does_not_exist() -> None:
    rows = set(re.findall(r"^\| `([a-z_]+)` \|", DOCS.read_text(), re.MULTILINE))
    assert rows == {setting.name for setting in settings()}


def test_every_field_of_config_but_the_origins_is_a_setting_with_help() -> None:
    assert [setting.name for setting in settings()] == [name for name in Config.__struct_fields__ if name != "origins"]
    assert all(setting.help for setting in settings())
