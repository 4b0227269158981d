"""The front ends of one process: HTTP, SQS and AMQP on one broker, where they listen, and where they refuse to."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol, TypedDict

from laneway.access import Access, TrustedProxies
from laneway.broker.interface import Broker
from laneway.config import Address, Config
from laneway.errors import ConfigInvalid, StartError
from laneway.first_admin import PASSWORD, USER
from laneway.frontends.amqp.limits import AmqpLimits
from laneway.frontends.amqp.replies import ReplyPost
from laneway.frontends.amqp.server import AmqpServer
from laneway.frontends.doors.directory import Directory, LocalDirectory
from laneway.frontends.doors.door import Door
from laneway.frontends.http.server import HttpServer
from laneway.frontends.management.api import management_api
from laneway.frontends.management.overview import ServerFacts
from laneway.frontends.rest.alerts import FindFiring
from laneway.frontends.rest.api import RestApi
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.rest.live import FindAlarms
from laneway.frontends.rest.metrics import MetricsOptions
from laneway.frontends.rest.processes import FindLoads
from laneway.frontends.rest.settings import Reload
from laneway.frontends.rest.statistics import FindHistory, FindStats
from laneway.frontends.sqs.api import SqsApi
from laneway.frontends.sqs.names import SqsOptions
from laneway.node.shares import Shares
from laneway.reloading import PutInForce, Reloading
from laneway.resources.intake import Intake
from laneway.telemetry.floods import FloodLog
from laneway.telemetry.load import pattern_of
from laneway.telemetry.meter import ErrorCounts
from laneway.telemetry.turns import LoopTurns

#: The settings that say where to listen.
LISTENING = ("http", "management", "https", "amqp", "amqps")

#: What is not encrypted, and the setting to use instead where it should be.
_WITH_TLS = {"http": "https", "management": "https", "amqp": "amqps"}

#: What can change of TLS while it is served.
TLS_SETTINGS = ("tls_cert", "tls_key", "tls_ca", "tls_clients", "tls_min_version")


#: What /metrics shows, and to whom.
METRICS_SETTINGS = ("metrics_open", "metrics_busiest", "metrics_queues")


class InCommon(TypedDict):
    """What all front ends of a process share."""

    intake: Intake
    floods: FloodLog
    proxies: TrustedProxies
    directory: LocalDirectory
    errors: ErrorCounts


class Start(Protocol):
    async def __call__(
        self, host: str, port: int, door: Door | None, proxies: TrustedProxies | None, *, is_shared: bool
    ) -> tuple[str, int]: ...


class FrontEnds:
    def __init__(self, config: Config, shares: Shares, floods: FloodLog) -> None:
        self._config = config
        self._floods = floods
        self.sqs = SqsOptions(
            account_id=config.sqs_account_id, region=config.sqs_region, waiting_periods=config.sqs_waiting_periods
        )
        self.tls = tls_door(config, shares.handshake_count, floods)
        self._proxied = proxied_settings(config)
        self._plain = _door(config, None, shares.handshake_count, floods) if self._proxied else None
        self._proxies = TrustedProxies(config.trusted_proxies.networks)
        self.intake = Intake(most_connections=shares.connection_count, most_bytes=shares.receiving_bytes)
        self.errors = ErrorCounts()
        self.metrics = MetricsOptions(*_metrics_of(config))
        self.http: HttpServer | None = None
        self.amqp: AmqpServer | None = None
        self._ports: Mapping[str, int] = {}
        self.addresses: dict[str, Address] = {}  # where it listens, by setting

    def build(
        self,
        broker: Broker,
        access: Access,
        own: LocalDirectory,
        *,
        directory: Directory,
        reload: Reload,
        find_loads: FindLoads,
        find_stats: FindStats,
        find_history: FindHistory,
        find_alarms: FindAlarms,
        find_firing: FindFiring,
        memory_bytes: int,
        turns: LoopTurns,
        reply_post: ReplyPost | None,
    ) -> None:
        """`own` has the connections of this process, `directory` those of the whole server."""
        limits = _rest_limits(self._config)
        rest = RestApi(
            broker,
            access,
            limits,
            reload=reload,
            directory=directory,
            find_loads=find_loads,
            find_stats=find_stats,
            find_history=find_history,
            find_alarms=find_alarms,
            find_firing=find_firing,
            turns=turns,
            metrics=self.metrics,
        )
        in_common = InCommon(
            intake=self.intake, floods=self._floods, proxies=self._proxies, directory=own, errors=self.errors
        )
        facts = ServerFacts(
            find_loads=find_loads,
            find_listeners=lambda: {setting: (at.host, at.port) for setting, at in self.addresses.items()},
            folder=self._config.data,
            memory_bytes=memory_bytes,
            most_connections=self._config.max_connections,
        )
        management = management_api(broker, access, directory, facts)
        self.http = HttpServer([SqsApi(broker, access, self.sqs), management, rest], limits, **in_common)
        access.on_change(self.http.recheck)
        amqp_limits = AmqpLimits(body_bytes=self._config.max_message_bytes)
        self.amqp = AmqpServer(
            broker, access, amqp_limits, version=self._config.amqp_version, reply_post=reply_post, **in_common
        )

    @property
    def channel_count(self) -> int:
        return self.amqp.channel_count if self.amqp is not None else 0

    async def listen(self, ports: Mapping[str, int], *, is_shared: bool = False) -> None:
        """At these ports, by setting, else those of the settings. `is_shared`: other processes listen there too."""
        assert self.http is not None and self.amqp is not None
        c, self._ports = self._config, ports
        await self._listen("http", c.http, self.http.start, is_shared=is_shared)
        await self._listen("management", c.management, self.http.start, is_shared=is_shared)
        await self._listen("amqp", c.amqp, self.amqp.start, is_shared=is_shared)
        if self.tls is not None:
            await self._listen("https", c.https, self.http.start, self.tls, is_shared=is_shared)
            await self._listen("amqps", c.amqps, self.amqp.start, self.tls, is_shared=is_shared)

    async def _listen(
        self, setting: str, address: Address | None, start: Start, door: Door | None = None, *, is_shared: bool
    ) -> None:
        if address is None:
            return
        is_proxied = setting in self._proxied
        door = self._plain if door is None and is_proxied else door
        try:
            proxies = self._proxies if is_proxied else None
            bound = await start(
                address.host, self._ports.get(setting, address.port), door, proxies, is_shared=is_shared
            )
        except OSError as trouble:
            raise cannot_listen(setting, address, trouble) from None
        self.addresses[setting] = Address(*bound)

    def follow(self, reloading: Reloading) -> None:
        """Take from now on what can change while it is served."""
        if self.tls is not None:
            reloading.on(TLS_SETTINGS, self._prepare_certificates)
        reloading.on(("trusted_proxies",), partial(_prepare_proxies, self._proxies))
        reloading.on(METRICS_SETTINGS, lambda config: partial(self.metrics.set, *_metrics_of(config)))

    def _prepare_certificates(self, config: Config) -> PutInForce:
        tls = tls_context(config)
        if tls is None:
            raise ConfigInvalid("tls_cert cannot be taken away while it is served with: restart", field="tls_cert")
        assert self.tls is not None
        return partial(self.tls.renew, tls)

    async def stop(self, grace_ms: int) -> None:
        servers: Sequence[HttpServer | AmqpServer | None] = (self.http, self.amqp)
        await asyncio.gather(*(server.stop(grace_ms) for server in servers if server is not None))


def listening(config: Config) -> dict[str, Address]:
    """Where a server with these settings listens, by setting."""
    found = {"http": config.http, "management": config.management, "amqp": config.amqp}
    if config.tls_cert is not None:
        found |= {"https": config.https, "amqps": config.amqps}
    return {setting: address for setting, address in found.items() if address is not None}


def where_served(addresses: dict[str, Address]) -> str:
    return " ".join(f"{setting}://{address}" for setting, address in addresses.items())


def cannot_listen(setting: str, address: Address, trouble: OSError) -> StartError:
    hint = f"use --{setting} HOST:PORT, or off"
    why = str(trouble)
    if trouble.errno == errno.EADDRINUSE:
        by = "perhaps RabbitMQ" if setting.startswith("amqp") else "perhaps another Laneway"
        why = f"somebody listens there already, {by}; stop that one"
        hint = f"or {hint}"
    return StartError(f"cannot listen on {address}: {why}; {hint}")


def first_account_advice(config: Config) -> str:
    return (
        f"Create an account first: `laneway account create NAME --role admin --data {config.data}` while no "
        f"server runs on it, or {USER} and {PASSWORD} (or a file of each: …_FILE) in the environment"
    )


def refuse_open_doors(config: Config, access: Access) -> None:
    for setting, address in listening(config).items():
        if address.is_loopback:
            continue
        reasons = []
        if access.guest_only:
            reasons.append(f"the only account is guest, whose password everybody knows. {first_account_advice(config)}")
        if setting in _WITH_TLS and not config.plain_beyond_loopback:
            reasons.append(
                "nothing is encrypted there, passwords and messages included. Use "
                f"--{_WITH_TLS[setting]} HOST:PORT with --tls-cert instead, or allow it with "
                "--plain-beyond-loopback true (LANEWAY_PLAIN_BEYOND_LOOPBACK=true) where the network is your own or a "
                "proxy ends TLS"
            )
        if reasons:
            why = "; and ".join(reasons)
            raise ConfigInvalid(f"{setting} is {address}, which others can reach, but {why}", field=setting)


def _metrics_of(config: Config) -> tuple[bool, int, str | None]:
    return config.metrics_open, config.metrics_busiest, pattern_of(config.metrics_queues)


def _rest_limits(config: Config) -> RestLimits:
    return RestLimits(
        body_bytes=config.max_body_bytes,
        head_bytes=config.max_header_bytes,
        header_count=config.max_header_count,
        idle_timeout_ms=int(config.idle_timeout_seconds * 1000),
        receive_timeout_ms=int(config.request_timeout_seconds * 1000),
    )


def tls_door(config: Config, most_handshakes: int, floods: FloodLog | None = None) -> Door | None:
    """What connections with TLS are admitted through, so many handshakes at once; None without a certificate."""
    context = tls_context(config)
    if context is None:
        return None
    return _door(config, context, most_handshakes, floods)


def _door(config: Config, context: ssl.SSLContext | None, most_handshakes: int, floods: FloodLog | None) -> Door:
    handshake_ms = int(config.tls_handshake_seconds * 1000)
    return Door(context, handshake_ms=handshake_ms, handshake_count=most_handshakes, floods=floods)


def proxied_settings(config: Config) -> frozenset[str]:
    """Where connections of trusted proxies begin with the PROXY protocol."""
    names = frozenset(part.strip() for part in (config.proxy_protocol or "").split(",") if part.strip())
    for name in sorted(names - set(LISTENING)):
        raise ConfigInvalid(f"proxy_protocol is any of {', '.join(LISTENING)}, not {name!r}", field="proxy_protocol")
    if names and not config.trusted_proxies.networks:
        raise ConfigInvalid("proxy_protocol needs trusted_proxies, the addresses of proxies", field="trusted_proxies")
    return names


def _prepare_proxies(proxies: TrustedProxies, config: Config) -> PutInForce:
    proxied_settings(config)
    return partial(proxies.trust, config.trusted_proxies.networks)


def tls_context(config: Config) -> ssl.SSLContext | None:
    """The certificate as it is in its files now; None without one."""
    if config.tls_cert is None:
        for setting in ("https", "tls_key", "tls_ca"):
            if getattr(config, setting) is not None:
                raise ConfigInvalid(f"{setting} needs tls_cert, the file of the certificate", field="tls_cert")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[config.tls_min_version]
    field, file = "tls_cert", config.tls_cert
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
        if config.tls_ca is not None:
            field, file = "tls_ca", config.tls_ca
            context.load_verify_locations(config.tls_ca)
            context.verify_mode = ssl.CERT_REQUIRED if config.tls_clients == "required" else ssl.CERT_OPTIONAL
    except OSError as trouble:
        what, why = f"{field} {file}", trouble.strerror or str(trouble)
        if field == "tls_cert" and config.tls_key is None:
            why += "; its private key is looked for in the same file, unless tls_key names another"
        elif field == "tls_cert":
            what += f" with tls_key {config.tls_key}"
            why += "; both must be there, be PEM, and belong together"
        raise ConfigInvalid(f"{what} cannot be used: {why}", field=field) from None
    if config.tls_ca is None and config.tls_clients == "required":
        raise ConfigInvalid(
            "tls_clients required needs tls_ca: what clients' certificates are signed by", field="tls_ca"
        )
    return context
