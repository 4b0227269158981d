"""Every setting of a node, once: its type, default, range and help. All else is derived from `Config` below.

To add a setting, add one field to `Config` (and its line in docs/configuration.md, a test asks for it). A field
`max_queues` is the TOML key `max_queues`, the variable `LANEWAY_MAX_QUEUES` and the flag `--max-queues`.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from laneway.errors import ConfigInvalid

DEFAULT_FILE = Path("laneway.toml")
VARIABLE_PREFIX = "LANEWAY_"

#: Variables of the same prefix that are not settings of a node: those of the command line's client, those that name
#: the first administrator, and where the file is.
OTHER_VARIABLES = frozenset(
    VARIABLE_PREFIX + name
    for name in (
        *("CONFIG", "URL", "KEY", "USER", "PASSWORD", "VHOST", "CA", "CERT", "CERT_KEY"),
        *("ADMIN_USER", "ADMIN_USER_FILE", "ADMIN_PASSWORD", "ADMIN_PASSWORD_FILE"),
    )
)

#: What others may put into the environment under this prefix, and which must not stop a server: Kubernetes and
#: Docker describe a service called laneway there, and the project's own tests and benchmarks take their knobs from it.
FOREIGN_VARIABLE = re.compile(
    r"LANEWAY_((TEST|BENCH|ENV)_\w+|NAME|(\w+_)?SERVICE_(HOST|PORT\w*)|(\w+_)?PORT(_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)"
)

_PASSWORD = re.compile(r"(://[^:/@\s]*:|\bpassword=)[^@\s&]+")

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_UNITS = {
    "": 1,
    "b": 1,
    "k": KIB,
    "kb": KIB,
    "kib": KIB,
    "m": MIB,
    "mb": MIB,
    "mib": MIB,
    "g": GIB,
    "gb": GIB,
    "gib": GIB,
}


class Address(msgspec.Struct, frozen=True):
    """Where to listen: HOST:PORT, or [HOST]:PORT for IPv6. Port 0 takes any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class Networks(msgspec.Struct, frozen=True):
    """Addresses and networks, in a row with commas between."""

    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()

    def __str__(self) -> str:
        shown = [str(n.network_address) if n.num_addresses == 1 else str(n) for n in self.networks]
        return ", ".join(shown) or "off"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a node, in the order in which they are shown. `origins` tells where each came from."""

    # Where
    data: Annotated[Path, Meta(description="folder that holds the journal; created when missing")] = Path("data")
    journal: Annotated[
        str | None,
        Meta(
            description="PostgreSQL databases that hold the journal in place of the data folder: "
            "postgresql://USER@HOST/NAME, several with spaces"
        ),
    ] = None
    processes: Annotated[
        int, Meta(ge=1, le=64, description="processes of the server, which share ports and partitions")
    ] = 1
    partitions: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description="partitions of the data folder; there can be more later, never fewer; 0: those there are, in a "
            "new folder one for each process",
        ),
    ] = 0
    http: Annotated[Address | None, Meta(description="where HTTP is served, or off")] = Address("127.0.0.1", 8080)
    management: Annotated[
        Address | None,
        Meta(
            description="where HTTP is served as well, for tools that look for RabbitMQ's management API at a port of "
            "its own, 15672; or off"
        ),
    ] = None
    https: Annotated[
        Address | None, Meta(description="where HTTP is served with TLS, which needs tls_cert, or off")
    ] = None
    amqp: Annotated[
        Address | None, Meta(description="where AMQP 0-9-1 is served, or off; localhost means both address families")
    ] = Address("localhost", 5672)
    amqp_version: Annotated[
        Literal["3.10", "4.0"],
        Meta(description="the RabbitMQ that AMQP clients are told they talk to, and whose answers they get"),
    ] = "4.0"
    amqps: Annotated[
        Address | None, Meta(description="where AMQP is served with TLS, once tls_cert is set, or off")
    ] = Address("localhost", 5671)
    tls_cert: Annotated[Path | None, Meta(description="certificate of the server and its chain, as PEM")] = None
    tls_key: Annotated[Path | None, Meta(description="private key of the certificate, as PEM")] = None
    tls_ca: Annotated[
        Path | None, Meta(description="certificates that clients' certificates must be signed by, as PEM")
    ] = None
    tls_clients: Annotated[
        Literal["optional", "required"],
        Meta(description="with tls_ca: whether clients may come without a certificate"),
    ] = "optional"
    tls_min_version: Annotated[Literal["1.2", "1.3"], Meta(description="the oldest version of TLS that is spoken")] = (
        "1.2"
    )
    tls_handshake_seconds: Annotated[float, Meta(ge=0.1, le=300, description="time for a TLS handshake")] = 10.0
    max_tls_handshakes: Annotated[
        int, Meta(ge=1, le=100_000, description="most TLS handshakes under way; the slowest makes room for the next")
    ] = 256
    plain_beyond_loopback: Annotated[
        bool, Meta(description="allow http and amqp, which are not encrypted, at addresses that others can reach")
    ] = False
    trusted_proxies: Annotated[
        Networks,
        Meta(
            description="proxies whose X-Forwarded-For and X-Forwarded-Proto count: addresses and networks, with commas"
        ),
    ] = Networks()
    proxy_protocol: Annotated[
        str | None,
        Meta(
            description="where trusted proxies begin with the PROXY protocol: "
            "http, management, https, amqp, amqps, with commas"
        ),
    ] = None

    # Durability
    durability: Annotated[
        Literal["commit", "interval", "none"],
        Meta(description="when a write counts as done: synced to disk, synced every so often, or handed to the system"),
    ] = "commit"
    sync_interval_ms: Annotated[
        int, Meta(ge=1, le=60_000, description="time between syncs with durability interval")
    ] = 50
    acks: Annotated[
        Literal["all", "leader"],
        Meta(
            description="with journal: whether a write counts as done once PostgreSQL's synchronous standby has it, or "
            "when it alone does"
        ),
    ] = "all"
    segment_bytes: Annotated[int, Meta(ge=MIB, le=GIB, description="size at which a journal file is closed")] = 64 * MIB
    snapshot_events: Annotated[
        int,
        Meta(
            ge=1_000,
            le=1_000_000_000,
            description="events after which a snapshot is taken, so that starting is quick; half as many as there are "
            "messages, if that is more",
        ),
    ] = 2_000_000

    # History for readers
    history_limit_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=1024 * 1024 * GIB,
            description="most bytes of history kept for cursors alone; at the limit the one furthest behind is lost",
        ),
    ] = 10 * GIB
    history_seconds: Annotated[
        float, Meta(ge=0, le=10 * 365 * 86_400, description="so much history is kept even if no cursor asks for it")
    ] = 0

    # SQS, on the HTTP port
    sqs_account_id: Annotated[str, Meta(description="twelve digits: the account in queue URLs and ARNs")] = (
        "000000000000"
    )
    sqs_region: Annotated[
        str, Meta(description="the region whose queues are those of the virtual host /; others have one each")
    ] = "us-east-1"
    sqs_waiting_periods: Annotated[
        bool,
        Meta(
            description="as AWS: for 60 seconds no queue of a deleted one's name, no second purge, and the earlier "
            "scope of deduplication"
        ),
    ] = True

    # Limits
    max_message_bytes: Annotated[
        int, Meta(ge=1, le=256 * MIB, description="largest message any queue may be set to take")
    ] = 128 * MIB
    max_queues: Annotated[int, Meta(ge=1, le=10_000_000, description="most queues")] = 200_000
    max_connections: Annotated[
        int, Meta(ge=1, le=1_000_000, description="most open connections, over all protocols")
    ] = 10_000
    max_body_bytes: Annotated[int, Meta(ge=KIB, le=GIB, description="largest request body")] = 32 * MIB
    max_memory_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=1024 * GIB,
            description="memory of the process above which publishers wait and consumers go on; 0: 60 % of what the "
            "machine or its container has",
        ),
    ] = 0
    max_receiving_bytes: Annotated[
        int,
        Meta(
            ge=MIB,
            le=1024 * GIB,
            description="most bytes of requests and messages that have not come whole yet, over all connections; half "
            "of it for callers whose name is not known yet",
        ),
    ] = 256 * MIB
    max_header_bytes: Annotated[int, Meta(ge=KIB, le=MIB, description="largest request line and headers together")] = (
        32 * KIB
    )
    max_header_count: Annotated[int, Meta(ge=8, le=10_000, description="most headers in a request")] = 100
    idempotency_keys_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000_000,
            description="most Idempotency-Keys remembered, one of a batch counted once for each message; the oldest "
            "are forgotten first",
        ),
    ] = 1_000_000

    max_dedup_bytes: Annotated[
        int,
        Meta(
            ge=MIB,
            le=1024 * GIB,
            description="most memory for deduplication ids, of which each counts 384 bytes; when it is full, messages "
            "with new ones are refused",
        ),
    ] = 256 * MIB
    max_staged_bytes: Annotated[
        int, Meta(ge=MIB, le=1024 * GIB, description="most bytes of batches that are staged and not committed")
    ] = GIB

    # Times
    staged_seconds: Annotated[
        float, Meta(ge=1, le=604_800, description="time after which what is staged and not committed is given up")
    ] = 3600.0
    request_timeout_seconds: Annotated[
        float, Meta(ge=0.1, le=3600, description="time for a request to arrive whole, once it has begun")
    ] = 30.0
    idle_timeout_seconds: Annotated[
        float, Meta(ge=0.1, le=86_400, description="time after which a silent keep-alive connection is closed")
    ] = 120.0
    shutdown_grace_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="time for open requests to finish when the server is stopped")
    ] = 10.0

    # Metrics
    metrics_open: Annotated[
        bool, Meta(description="allow /metrics without an account to whoever asks from this machine, through no proxy")
    ] = False
    metrics_busiest: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="how many queues have metrics by name: that many of the deepest, the oldest, the busiest, "
            "and of those with the most dead letters",
        ),
    ] = 20
    metrics_queues: Annotated[
        str | None,
        Meta(description="names of queues that always have metrics, with * and ? and commas between, at most 1000"),
    ] = None

    # Alerts
    alert_webhook: Annotated[
        Path | None, Meta(description="file with the URL that alerts are sent to when they fire and when they are over")
    ] = None
    alert_form: Annotated[Literal["slack", "json"], Meta(description="how alerts are sent there")] = "json"

    # Logs
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="the least important lines to log")
    ] = "info"
    log_format: Annotated[Literal["text", "json"], Meta(description="log lines for people or for programs")] = "text"

    # Not a setting: where each came from, by name. Filled by load_config.
    origins: Mapping[str, str] = {}


class Setting(msgspec.Struct, frozen=True):
    """What can be said about one field of Config."""

    name: str
    kind: Any  # Path, Address, int, float, bool, str
    choices: tuple[str, ...]
    lowest: float | None
    highest: float | None
    optional: bool
    default: Any
    help: str

    @property
    def variable(self) -> str:
        return VARIABLE_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def values(self) -> str:
        """What may be given, in short."""
        if self.choices:
            return "|".join(self.choices)
        if self.kind is bool:
            return "true|false"
        if self.kind is Path:
            return "DIR" if self.name == "data" else "PATH"
        return {Address: "HOST:PORT", Networks: "ADDRESS[/BITS],…", int: "N", float: "N"}.get(self.kind, "TEXT")

    def show(self, value: object) -> str:
        if value is None:
            return "off"
        if isinstance(value, bool):
            return str(value).lower()
        if self.name.endswith("_bytes") and isinstance(value, int):
            for size, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
                if value and value % size == 0:
                    return f"{value // size}{unit}"
        return without_password(str(value))


def without_password(url: str) -> str:
    return _PASSWORD.sub(r"\1***", url)


def settings() -> list[Setting]:
    """All settings, in the order of Config."""
    hints = typing.get_type_hints(Config, include_extras=True)
    return [
        _setting(field.name, hints[field.name], field.default)
        for field in msgspec.structs.fields(Config)
        if field.name != "origins"
    ]


def _setting(name: str, hint: Any, default: object) -> Setting:
    kind, meta = typing.get_args(hint)[:2]
    alternatives = typing.get_args(kind) if typing.get_origin(kind) in (UnionType, typing.Union) else (kind,)
    kind = next(one for one in alternatives if one is not type(None))
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    return Setting(
        name=name,
        kind=str if choices else kind,
        choices=choices,
        lowest=meta.ge,
        highest=meta.le,
        optional=type(None) in alternatives,
        default=default,
        help=meta.description or "",
    )


def load_config(flags: Mapping[str, str], env: Mapping[str, str], file: Path | None = None) -> Config:
    """The settings in force: a flag wins over a variable, a variable over the file, the file over the default.

    `flags` are by name of the setting. The file is the one given, or the one LANEWAY_CONFIG names, or ./laneway.toml
    if there is one.
    """
    known = {setting.name: setting for setting in settings()}
    found: dict[str, object] = {}
    origins = dict.fromkeys(known, "default")
    path = _file_in_force(env, file)
    sources = [_from_file(path) if path is not None else {}, _from_environment(env, known), _from_flags(flags)]
    for source in sources:
        for name, (value, origin) in source.items():
            if name not in known:
                raise ConfigInvalid(f"there is no setting {name!r} ({origin}){_suggest(name, list(known))}", field=name)
            found[name] = _parse(known[name], value, origin)
            origins[name] = origin
    return Config(**found, origins=origins)  # type: ignore[arg-type]


def wants_json_log(flags: Mapping[str, str], env: Mapping[str, str], file: Path | None = None) -> bool:
    """Whether log lines are to be JSON, as far as can be said of settings that may be wrong."""
    found = flags.get("log_format") or env.get(VARIABLE_PREFIX + "LOG_FORMAT")
    if found is None:
        try:
            path = _file_in_force(env, file)
            found = str(_from_file(path).get("log_format", ("",))[0]) if path is not None else ""
        except ConfigInvalid:
            return False
    return found == "json"


_Source = dict[str, tuple[object, str]]  # name -> (value, where it came from)


def _file_in_force(env: Mapping[str, str], file: Path | None) -> Path | None:
    if file is not None:
        return file
    if env.get(VARIABLE_PREFIX + "CONFIG"):
        return Path(env[VARIABLE_PREFIX + "CONFIG"])
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def _from_file(path: Path) -> _Source:
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigInvalid(f"the configuration file {path} cannot be read: {os.strerror(error.errno or 0)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"the configuration file {path} is not valid TOML: {error}") from error
    return {name: (value, f"file {path}") for name, value in values.items()}


def _from_environment(env: Mapping[str, str], known: Mapping[str, Setting]) -> _Source:
    by_variable = {setting.variable: name for name, setting in known.items()}
    found: _Source = {}
    for variable, value in sorted(env.items()):
        if not value:
            continue  # the usual way to unset a variable where one cannot be removed
        if variable in by_variable:
            found[by_variable[variable]] = (value, f"variable {variable}")
        elif _is_ours(variable, value):
            hint = _suggest(variable, [*by_variable, *OTHER_VARIABLES])
            raise ConfigInvalid(f"there is no setting for the variable {variable}{hint}", field=variable)
    return found


def _is_ours(variable: str, value: str) -> bool:
    if not variable.startswith(VARIABLE_PREFIX) or variable in OTHER_VARIABLES:
        return False
    if variable.endswith("_PORT") and "SERVICE" not in variable and "://" not in value:
        return True  # no service's address: somebody means LANEWAY_HTTP
    return FOREIGN_VARIABLE.fullmatch(variable) is None


def _from_flags(flags: Mapping[str, str]) -> _Source:
    return {name: (value, f"flag --{name.replace('_', '-')}") for name, value in flags.items()}


def _suggest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f": did you mean {close[0]}?" if close else "; `laneway config` lists the settings there are"


def _parse(setting: Setting, value: object, origin: str) -> object:
    try:
        parsed = _convert(setting, value)
    except ValueError as error:
        raise ConfigInvalid(f"{setting.name} {error}, not {value!r} ({origin})", field=setting.name) from None
    return parsed


def _convert(setting: Setting, value: object) -> object:
    """The value in its own type; a ValueError says what it must be, to be followed by what it is."""
    if setting.optional and value in ("", "off", None):
        return None
    if setting.choices:
        if value not in setting.choices:
            raise ValueError(f"must be {' or '.join(setting.choices)}")
        return value
    if setting.kind is Networks:
        return _convert_networks(value)
    if setting.kind is bool:
        return _convert_bool(value)
    if setting.kind in (int, float):
        return _convert_number(setting, value)
    if not isinstance(value, str) or not value:
        raise ValueError(f"must be {setting.values} as text")
    if "\0" in value:
        raise ValueError("must not contain a zero byte")
    if setting.kind is Path:
        return Path(value).expanduser()
    if setting.kind is Address:
        return _convert_address(value)
    return value


def _convert_networks(value: object) -> Networks:
    parts = [] if value == "off" else value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError("must be addresses and networks as text, with commas between, or off")
    try:
        return Networks(tuple(ipaddress.ip_network(part.strip()) for part in parts if part.strip()))
    except ValueError as error:
        raise ValueError(f"must be addresses and networks as 10.0.0.0/8 ({error})") from None


def _convert_bool(value: object) -> bool:
    by_word = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    word = str(value).lower()
    if isinstance(value, (bool, str)) and word in by_word:
        return by_word[word]
    raise ValueError("must be true or false")


def _convert_number(setting: Setting, value: object) -> int | float:
    bounds = f"from {setting.show(setting.lowest)} to {setting.show(setting.highest)}"
    number: int | float | None = None
    if isinstance(value, str):
        number = _number_of_text(setting, value.strip())
    elif isinstance(value, setting.kind) or (setting.kind is float and isinstance(value, int)):
        number = None if isinstance(value, bool) else setting.kind(value)
    if number is None:
        raise ValueError(f"must be a {'whole ' if setting.kind is int else ''}number {bounds}")
    # Written this way round, a NaN is refused too.
    if not (
        (setting.lowest is None or number >= setting.lowest) and (setting.highest is None or number <= setting.highest)
    ):
        raise ValueError(f"must be {bounds}")
    return number


def _number_of_text(setting: Setting, text: str) -> int | float | None:
    if setting.name.endswith("_bytes"):
        size = re.fullmatch(r"([0-9][0-9_]*)\s*([a-z]*)", text.lower())
        if size is None or size[2] not in _UNITS:
            return None
        return int(size[1].replace("_", "")) * _UNITS[size[2]]
    try:
        number: int | float = setting.kind(text)
    except ValueError:
        return None
    return number


def _convert_address(text: str) -> Address:
    match = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^:\[\]\s]+)):([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65_535:
        raise ValueError("must be HOST:PORT ([HOST]:PORT for IPv6) with a port from 0 to 65535")
    host = match[2]
    if match[1] is not None:
        try:
            host = str(ipaddress.IPv6Address(match[1]))
        except ValueError:
            raise ValueError("must have an IPv6 address between its brackets") from None
    return Address(host, int(match[3]))
