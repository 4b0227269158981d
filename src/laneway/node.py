"""One node: the only place that names concrete parts and puts them together."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import secrets
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypedDict

import msgspec
import uvloop

from laneway.access import Access, TrustedProxies
from laneway.broker.clock import Clock
from laneway.broker.documents import Documents
from laneway.broker.engine import Engine
from laneway.broker.interface import Broker
from laneway.broker.local import LocalBroker
from laneway.broker.partition import Partition
from laneway.broker.values import BrokerLimits, StagingLimits
from laneway.config import Address, Config
from laneway.core.dedups import DEDUP_BYTES
from laneway.errors import ConfigInvalid, StartError
from laneway.first_admin import PASSWORD, USER, FirstAdmin
from laneway.frontends.amqp.limits import AmqpLimits
from laneway.frontends.amqp.server import AmqpServer
from laneway.frontends.doors.directory import LocalDirectory
from laneway.frontends.doors.door import Door
from laneway.frontends.http.server import HttpServer
from laneway.frontends.rest.answers import ReloadAnswer
from laneway.frontends.rest.api import RestApi
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.sqs.api import SqsApi
from laneway.frontends.sqs.names import SqsOptions
from laneway.journal.segments.journal import SegmentJournal
from laneway.logs import announce, set_up_logging
from laneway.reloading import PutInForce, Reloading, described
from laneway.resources import descriptors, memory
from laneway.resources.intake import Intake
from laneway.resources.memory import MemoryWatch
from laneway.telemetry.floods import FloodLog
from laneway.telemetry.turns import LoopTurns, TurnWatch

log = logging.getLogger("laneway.node")

#: The writer thread gets its turn after this long at the latest, instead of Python's 5 ms: while it waits, so do all
#: who wait for its commit. Only a thread that waits makes the other give way, so this costs nothing otherwise.
SWITCH_INTERVAL_S = 0.00005


#: The settings that say where to listen.
LISTENING = ("http", "https", "amqp", "amqps")

#: What can change of TLS while it is served.
TLS_SETTINGS = ("tls_cert", "tls_key", "tls_ca", "tls_clients", "tls_min_version")

#: Of messages that were published last, so that they need not be read back; at most this part of max_memory_bytes.
CACHE_BYTES = 128 * 1024 * 1024
CACHE_SHARE = 4


class InCommon(TypedDict):
    """What all front ends of a node share."""

    intake: Intake
    floods: FloodLog
    proxies: TrustedProxies
    directory: LocalDirectory


Start = Callable[[str, int, Door | None, TrustedProxies | None], Awaitable[tuple[str, int]]]


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


async def _as_it_is(broker: LocalBroker) -> Broker:
    return broker


class Node:
    """A broker on a folder with its front ends. `async with Node(config) as node:` for tests and embedding.

    `wrap` puts something between the broker and the front ends, `read_config` reads the settings again on a reload."""

    def __init__(
        self,
        config: Config,
        *,
        wrap: Callable[[LocalBroker], Awaitable[Broker]] = _as_it_is,
        read_config: Callable[[], Config] | None = None,
        first_admin: FirstAdmin | None = None,
    ) -> None:
        self.reloading = Reloading(config, read_config)
        self._first_admin = first_admin
        self.failed: asyncio.Event = asyncio.Event()
        self.turns = LoopTurns()
        self._watch = TurnWatch(self.turns)
        self._sqs = SqsOptions(account_id=config.sqs_account_id, region=config.sqs_region)
        limit = descriptors.limit_in_force()
        share = descriptors.share_out(limit, config.max_connections, _handshake_count(config))
        self.floods = FloodLog()
        self.tls = tls_door(config, share.for_handshakes, self.floods)
        self._proxied = proxied_settings(config)
        self._plain = _door(config, None, share.for_handshakes, self.floods) if self._proxied else None
        if share.for_connections < config.max_connections:
            log.warning(
                "max_connections is %d, and this process may open %d files: so there will be %d connections at most; "
                "raise its limit (ulimit -n, LimitNOFILE=)",
                config.max_connections,
                limit,
                share.for_connections,
            )
        # At least for two of the largest, one of them from somebody who is not known yet.
        largest_bytes = max(config.max_body_bytes, config.max_message_bytes)
        receiving_bytes = max(config.max_receiving_bytes, 2 * largest_bytes)
        self.intake = Intake(most_connections=share.for_connections, most_bytes=receiving_bytes)
        memory_bytes = config.max_memory_bytes or int(memory.available_bytes() * memory.DEFAULT_SHARE)
        self._memory = MemoryWatch(memory_bytes, self._memory_changed)
        try:
            journal = SegmentJournal(
                config.data,
                durability=config.durability,
                interval_ms=config.sync_interval_ms,
                segment_bytes=config.segment_bytes,
                max_open_files=share.for_reading,
            )
        except OSError as trouble:
            raise StartError(f"cannot use the data folder {config.data}: {trouble}; use --data FOLDER") from None
        cache_bytes = min(CACHE_BYTES, memory_bytes // CACHE_SHARE)
        engine = Engine(journal, new_tag=lambda: 1 + secrets.randbelow((1 << 26) - 1), cache_bytes=cache_bytes)
        self.partition = Partition(
            engine,
            clock=Clock.of_machine(),
            limits=BrokerLimits(
                max_queues=config.max_queues,
                max_message_bytes=config.max_message_bytes,
                max_idempotency_keys=config.idempotency_keys_max,
                max_dedups=config.max_dedup_bytes // DEDUP_BYTES,
                snapshot_events=config.snapshot_events,
                history_limit_bytes=_history(config)[0],
                history_ms=_history(config)[1],
                staging=StagingLimits(max_bytes=config.max_staged_bytes, lifetime_ms=int(config.staged_seconds * 1000)),
            ),
            on_failed=lambda _: self.failed.set(),
            idle_ms=config.sync_interval_ms if config.durability == "interval" else 20,
            staging_folder=config.data / "staged",
            turns=self.turns,
        )
        self._wrap = wrap
        self.broker: Broker
        self.access: Access | None = None
        self.http: HttpServer | None = None
        self.amqp: AmqpServer | None = None
        self.addresses: dict[str, Address] = {}  # where it listens, by setting

    @property
    def config(self) -> Config:
        """The settings in force."""
        return self.reloading.running

    async def open(self) -> Access:
        """Recover what is in the folder, and listen nowhere."""
        started_s = time.monotonic()
        recovery = await self.partition.start()
        log.info(
            "recovered %s in %.1f s: snapshot at commit %d, %d events of messages after it, epoch %d",
            self.config.data,
            time.monotonic() - started_s,
            recovery.snapshot_position,
            recovery.event_count,
            recovery.epoch,
        )
        self.broker = await self._wrap(LocalBroker(self.partition))
        self.access = Access(Documents(self.broker), now_ms=wall_clock_ms, floods=self.floods)
        return self.access

    async def start(self) -> None:
        access = await self.open()
        if self._first_admin is not None and await self._first_admin.create(access):
            log.info("created the first account, %r with the role admin, and deleted guest", self._first_admin.name)
        self._refuse_open_doors(access)
        if access.guest_only and self.config.trusted_proxies.networks:
            log.warning(
                "guest is the only account and does not come through trusted_proxies, so nobody can log in there. %s",
                self._first_account_advice(),
            )
        limits = self._rest_limits()
        sqs = SqsApi(self.broker, access, self._sqs)
        proxies = TrustedProxies(self.config.trusted_proxies.networks)
        directory = LocalDirectory(wall_clock_ms)
        rest = RestApi(self.broker, access, limits, reload=self._reload, directory=directory)
        in_common = InCommon(intake=self.intake, floods=self.floods, proxies=proxies, directory=directory)
        self.http = HttpServer([sqs, rest], limits, **in_common)
        access.on_change(self.http.recheck)
        self.amqp = AmqpServer(self.broker, access, self._amqp_limits(), **in_common)
        await self._listen("http", self.config.http, self.http.start, proxies)
        await self._listen("amqp", self.config.amqp, self.amqp.start, proxies)
        if self.tls is not None:
            await self._listen("https", self.config.https, self.http.start, proxies, self.tls)
            await self._listen("amqps", self.config.amqps, self.amqp.start, proxies, self.tls)
            self.reloading.on(TLS_SETTINGS, self._prepare_certificates)
        on, keep = self.reloading.on, self.partition.cursors.keep
        on(("log_level", "log_format"), lambda c: partial(set_up_logging, c.log_level, c.log_format))
        on(("trusted_proxies",), partial(_prepare_proxies, proxies))
        on(("history_limit_bytes", "history_seconds"), lambda c: partial(keep, *_history(c)))
        on(("shutdown_grace_seconds",), lambda c: lambda: None)  # is looked up when it is needed
        # What recovery built stays: the collector need not walk it again and again.
        gc.collect()
        gc.freeze()
        self._watch.start()
        self._memory.start()

    def _memory_changed(self, is_short: bool) -> None:
        self.intake.is_memory_short = is_short
        self.partition.set_memory_short(is_short)

    def _reload(self) -> ReloadAnswer:
        done = self.reloading.reload()
        log.info("reloaded: %s", described(done))
        return ReloadAnswer(changed=done.changed, read_again=done.read_again, needs_restart=done.needs_restart)

    def _prepare_certificates(self, config: Config) -> PutInForce:
        tls = tls_context(config)
        if tls is None:
            raise ConfigInvalid("tls_cert cannot be taken away while it is served with: restart", field="tls_cert")
        assert self.tls is not None
        return partial(self.tls.renew, tls)

    async def _listen(
        self, setting: str, address: Address | None, start: Start, proxies: TrustedProxies, door: Door | None = None
    ) -> None:
        if address is None:
            return
        is_proxied = setting in self._proxied
        door = self._plain if door is None and is_proxied else door
        try:
            bound = await start(address.host, address.port, door, proxies if is_proxied else None)
        except OSError as trouble:
            hint = f"use --{setting} HOST:PORT, or off"
            why = str(trouble)
            if trouble.errno == errno.EADDRINUSE:
                by = "perhaps RabbitMQ" if setting.startswith("amqp") else "perhaps another Laneway"
                why = f"somebody listens there already, {by}; stop that one"
                hint = f"or {hint}"
            raise StartError(f"cannot listen on {address}: {why}; {hint}") from None
        self.addresses[setting] = Address(*bound)

    def _first_account_advice(self) -> str:
        return (
            f"Create an account first: `laneway account create NAME --role admin --data {self.config.data}` while no "
            f"server runs on it, or {USER} and {PASSWORD} (or a file of each: …_FILE) in the environment"
        )

    def _refuse_open_doors(self, access: Access) -> None:
        c = self.config
        listening = {"http": c.http, "https": c.https, "amqp": c.amqp, "amqps": c.tls_cert and c.amqps}
        for setting, address in listening.items():
            if not isinstance(address, Address) or address.is_loopback:
                continue
            reasons = []
            if access.guest_only:
                reasons.append(
                    f"the only account is guest, whose password everybody knows. {self._first_account_advice()}"
                )
            if setting in ("http", "amqp") and not c.plain_beyond_loopback:
                reasons.append(
                    "nothing is encrypted there, passwords and messages included. Use "
                    f"--{setting}s HOST:PORT with --tls-cert instead, or allow it with --plain-beyond-loopback true "
                    "(LANEWAY_PLAIN_BEYOND_LOOPBACK=true) where the network is your own or a proxy ends TLS"
                )
            if reasons:
                why = "; and ".join(reasons)
                raise ConfigInvalid(f"{setting} is {address}, which others can reach, but {why}", field=setting)

    def _rest_limits(self) -> RestLimits:
        c = self.config
        return RestLimits(
            body_bytes=c.max_body_bytes,
            head_bytes=c.max_header_bytes,
            header_count=c.max_header_count,
            idle_timeout_ms=int(c.idle_timeout_seconds * 1000),
            receive_timeout_ms=int(c.request_timeout_seconds * 1000),
        )

    def _amqp_limits(self) -> AmqpLimits:
        return AmqpLimits(body_bytes=self.config.max_message_bytes)

    async def stop(self) -> None:
        self._watch.stop()
        self._memory.stop()
        grace_ms = int(self.config.shutdown_grace_seconds * 1000)
        await asyncio.gather(*(server.stop(grace_ms) for server in (self.http, self.amqp) if server is not None))
        self.floods.flush(is_last=True)
        await self.partition.stop()

    async def __aenter__(self) -> Node:
        try:
            await self.start()
        except StartError:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def _handshake_count(config: Config) -> int:
    return config.max_tls_handshakes if config.tls_cert is not None or config.proxy_protocol else 0


def tls_door(config: Config, handshake_count: int, floods: FloodLog | None = None) -> Door | None:
    """What connections with TLS are admitted through, so many handshakes at once; None without a certificate."""
    context = tls_context(config)
    if context is None:
        return None
    return _door(config, context, handshake_count, floods)


def _door(config: Config, context: ssl.SSLContext | None, handshake_count: int, floods: FloodLog | None) -> Door:
    handshake_ms = int(config.tls_handshake_seconds * 1000)
    return Door(context, handshake_ms=handshake_ms, handshake_count=handshake_count, floods=floods)


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


def _history(config: Config) -> tuple[int, int]:
    """How much of it is kept for readers: most bytes, and how long in any case."""
    return config.history_limit_bytes, int(config.history_seconds * 1000)


@asynccontextmanager
async def offline(config: Config) -> AsyncIterator[Access]:
    """The accounts in a folder that no server runs on; JournalLocked if one does."""
    node = Node(msgspec.structs.replace(config, tls_cert=None, tls_key=None, tls_ca=None, https=None))
    access = await node.open()
    try:
        yield access
    finally:
        await node.stop()


def serve(
    config: Config, read_config: Callable[[], Config] | None = None, first_admin: FirstAdmin | None = None
) -> int:
    """Run a node until it is told to stop; the exit code of the process."""
    set_up_logging(config.log_level, config.log_format)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is a node to reload
    descriptors.raise_limit(config.max_connections + _handshake_count(config))
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(100_000, 50, 100)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, read_config, first_admin))


async def _serve(config: Config, read_config: Callable[[], Config] | None, first_admin: FirstAdmin | None) -> int:
    node = Node(config, read_config=read_config, first_admin=first_admin)
    await node.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, node.reloading.reload_and_log)
    announce(node.config.log_format, f"Laneway serves {where_served(node)} from {node.config.data}")
    waits = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(node.failed.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if node.failed.is_set():
        log.critical("the journal cannot be written: see above. Nothing confirmed was lost.")
        return 1
    log.info("stopping")
    await node.stop()
    return 0


def where_served(node: Node) -> str:
    return " ".join(f"{setting}://{address}" for setting, address in node.addresses.items())
