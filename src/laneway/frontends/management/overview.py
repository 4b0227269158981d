"""The server as a whole: overview, its node, its name, whether it is well."""

from __future__ import annotations

import asyncio
import platform
import shutil
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from laneway.broker import interface as i
from laneway.broker.arguments import DELAYED_TYPE, EXCHANGE_TYPES, settings_from_arguments
from laneway.core.message import Messages, amqp_props_head
from laneway.frontends.doors.directory import Directory
from laneway.frontends.management.asking import ManagementAsk, ManagementReply, reply
from laneway.frontends.management.errors import bad_request, not_there
from laneway.frontends.management.listing import Wish, cut
from laneway.frontends.management.routing import at
from laneway.frontends.management.scope import VERSION, Scope
from laneway.telemetry.load import Choice, Loads

#: Of the whole server, with the queues that are chosen.
FindLoads = Callable[[Choice], Awaitable[Loads]]

#: Where the server listens: host and port by setting.
FindListeners = Callable[[], Mapping[str, tuple[str, int]]]

_PROTOCOLS = {"http": "http", "https": "https", "management": "http", "amqp": "amqp", "amqps": "amqp/ssl"}
_SAME_PROTOCOL = {"amqp091": "amqp", "amqp0.9.1": "amqp", "amqp091s": "amqp/ssl", "amqps": "amqp/ssl"}
_WELL = ("ready",)
_ALARMS = {"memory_low": "memory", "disk_full": "disk"}
_PAGE = 1_000  # connections, before others get their turn
_ALIVE = "aliveness-test"  # the queue that RabbitMQ makes for it
_ALIVE_MS = 5_000
_UNITS = ("days", "weeks", "months", "years")


class ServerFacts(msgspec.Struct):
    """What the process knows of itself and of where it runs."""

    find_loads: FindLoads
    find_listeners: FindListeners
    folder: Path  # of the journal
    memory_bytes: int  # above which publishers wait
    most_connections: int


class OverviewPart:
    def __init__(self, scope: Scope, directory: Directory, facts: ServerFacts) -> None:
        self._scope = scope
        self._broker = scope.broker
        self._directory = directory
        self._facts = facts

    @at("GET /overview")
    async def overview(self, ask: ManagementAsk) -> ManagementReply:
        loads = (await self._facts.find_loads(Choice())).processes
        sums = {
            name: sum(getattr(load, f"{name}_per_second") for load in loads)
            for name in ("published", "delivered", "acked")
        }
        waiting, leased = sum(load.waiting for load in loads), sum(load.leased for load in loads)
        topology = self._broker.topology
        exchanges = queues = 0
        for vhost in self._scope.vhosts(ask):
            exchanges += len(topology.exchanges(vhost))
            queues += topology.queue_count(vhost)
            await asyncio.sleep(0)
        counts = await self._directory.counts()
        channels, consumers = await self._open()
        told = {
            "management_version": VERSION,
            "rates_mode": "basic",
            "sample_retention_policies": {"global": [], "basic": [], "detailed": []},
            "exchange_types": exchange_types(),
            "product_version": version("laneway"),
            "product_name": "Laneway",
            "rabbitmq_version": VERSION,
            "cluster_name": self.cluster_name(),
            "erlang_version": "",
            "erlang_full_version": f"Python {platform.python_version()}",
            "disable_stats": False,
            "enable_queue_totals": False,
            "message_stats": {
                "publish_details": {"rate": sums["published"]},
                "deliver_get_details": {"rate": sums["delivered"]},
                "ack_details": {"rate": sums["acked"]},
            },
            "queue_totals": {
                "messages": waiting + leased,
                "messages_ready": waiting,
                "messages_unacknowledged": leased,
            },
            "object_totals": {
                "channels": channels,
                "connections": counts["amqp"],
                "consumers": consumers,
                "exchanges": exchanges,
                "queues": queues,
            },
            "statistics_db_event_queue": 0,
        }
        return reply(told)

    def cluster_name(self) -> str:
        return self._scope.node

    async def _open(self) -> tuple[int, int]:
        """Channels and consumers of all connections."""
        channels = consumers = after = 0
        while True:
            page = await self._directory.connections(account=None, protocol="amqp", after=after, limit=_PAGE)
            channels += sum(info.channel_count for _, info in page)
            consumers += sum(info.consumer_count for _, info in page)
            if len(page) < _PAGE:
                return channels, consumers
            after = page[-1][0]

    @at("GET /whoami")
    async def whoami(self, ask: ManagementAsk) -> ManagementReply:
        return reply({"name": ask.account.name, "tags": self._scope.access.tags_of(ask.account)})

    @at("GET /auth")
    async def auth(self, ask: ManagementAsk) -> ManagementReply:
        return reply({"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""})

    @at("GET /extensions")
    async def extensions(self, ask: ManagementAsk) -> ManagementReply:
        """Of the pages that RabbitMQ's own console has, which are not here."""
        return reply([])

    @at("GET /feature-flags", "GET /deprecated-features", "GET /deprecated-features/used")
    async def feature_flags(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_monitor(ask.account)
        return reply([])

    @at("GET /cluster-name")
    async def get_cluster_name(self, ask: ManagementAsk) -> ManagementReply:
        return reply({"name": self.cluster_name()})

    @at("PUT /cluster-name")
    async def put_cluster_name(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        raise bad_request(
            f"the name of this server is {self.cluster_name()!r}, after its machine: it cannot be changed"
        )

    # --- the node: all processes of the server together

    @at("GET /nodes")
    async def list_nodes(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_monitor(ask.account)
        wish = Wish(ask.query)
        return reply([wish.cut(await self._node())])

    @at("GET /nodes/{node}")
    async def get_node(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_monitor(ask.account)
        self._check_node(ask)
        row = await self._node()
        return reply(cut(row, Wish(ask.query).columns) if "columns" in ask.query else row)

    @at("GET /nodes/{node}/memory", "GET /nodes/{node}/memory/{how}")
    async def get_memory(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_monitor(ask.account)
        self._check_node(ask)
        used = (await self._node())["mem_used"]
        return reply({"memory": {"total": {"rss": used, "allocated": used, "erlang": 0}}})

    def _check_node(self, ask: ManagementAsk) -> None:
        if ask.names["node"] != self._scope.node:
            raise not_there()

    async def _node(self) -> dict[str, Any]:
        loads = (await self._facts.find_loads(Choice())).processes
        alarms = self._alarms()
        disk = await asyncio.to_thread(shutil.disk_usage, self._facts.folder)
        counts = await self._directory.counts()
        return {
            "name": self._scope.node,
            "type": "disc",
            "running": self._broker.health()["state"] != "stopping",
            "os_pid": str(next((load.pid for load in loads if load.pid), "")),
            "uptime": int(max((load.uptime_s for load in loads), default=0) * 1000),
            "processors": len(loads),
            "run_queue": 0,
            "rates_mode": "basic",
            "partitions": [],
            "mem_used": sum(load.resident_bytes for load in loads),
            "mem_limit": self._facts.memory_bytes,
            "mem_alarm": "memory" in alarms,
            "mem_calculation_strategy": "rss",
            "disk_free": disk.free,
            "disk_free_limit": 0,
            "disk_free_alarm": "disk" in alarms,
            "sockets_used": sum(counts.values()),
            "sockets_total": self._facts.most_connections,
            "fd_used": sum(counts.values()),
            "fd_total": self._facts.most_connections,
            "proc_used": len(loads),
            "proc_total": len(loads),
            "net_ticktime": 0,
            "db_dir": str(self._facts.folder),
            "config_files": [],
            "log_files": [],
            "enabled_plugins": ["rabbitmq_management"],
            "exchange_types": exchange_types(),
            "auth_mechanisms": [
                {"name": name, "description": "", "enabled": True} for name in ("PLAIN", "AMQPLAIN", "EXTERNAL")
            ],
            "applications": [
                {"name": "laneway", "description": "Laneway", "version": version("laneway")},
                {"name": "rabbit", "description": "the RabbitMQ whose answers these are", "version": VERSION},
            ],
            "contexts": [],
        }

    # --- is it well

    def _states(self) -> list[str]:
        health = self._broker.health()
        partitions = health.get("partitions")
        of_partitions = list(map(str, partitions.values())) if isinstance(partitions, dict) else []
        return [str(health["state"]), *of_partitions]

    def _alarms(self) -> list[str]:
        return sorted({_ALARMS[state] for state in self._states() if state in _ALARMS})

    @at("GET /healthchecks/node", "GET /healthchecks/node/{node}")
    async def check_node(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_monitor(ask.account)
        if "node" in ask.names:
            self._check_node(ask)
        return self._is_in_service()

    @at("GET /health/checks/is-in-service", "GET /health/checks/ready-to-serve-clients")
    async def check_in_service(self, ask: ManagementAsk) -> ManagementReply:
        return self._is_in_service()

    def _is_in_service(self) -> ManagementReply:
        bad = sorted({state for state in self._states() if state not in _WELL})
        return _well(not bad, reason=f"not ready: {', '.join(bad)}")

    @at("GET /health/checks/alarms", "GET /health/checks/local-alarms")
    async def check_alarms(self, ask: ManagementAsk) -> ManagementReply:
        alarms = self._alarms()
        listed = [{"node": self._scope.node, "resource": alarm} for alarm in alarms]
        return _well(not alarms, reason="There are alarms in effect", alarms=listed)

    @at("GET /health/checks/virtual-hosts")
    async def check_vhosts(self, ask: ManagementAsk) -> ManagementReply:
        return _well(True)

    @at("GET /health/checks/node-is-mirror-sync-critical", "GET /health/checks/node-is-quorum-critical")
    async def check_critical(self, ask: ManagementAsk) -> ManagementReply:
        return reply({"status": "ok", "reason": "single node cluster"})

    @at("GET /health/checks/below-node-connection-limit")
    async def check_connection_limit(self, ask: ManagementAsk) -> ManagementReply:
        count, limit = sum((await self._directory.counts()).values()), self._facts.most_connections
        return _well(count < limit, reason="connection limit reached", connections=count, limit=limit)

    @at("GET /health/checks/port-listener/{port}")
    async def check_port(self, ask: ManagementAsk) -> ManagementReply:
        port = ask.names["port"]
        if not (port.isascii() and port.isdecimal() and len(port) < 6):
            raise bad_request(f"a port is a number, not {port[:80]!r}")
        ports = sorted({at_ for _, at_ in self._facts.find_listeners().values()})
        if int(port) in ports:
            return reply({"status": "ok", "port": int(port)})
        return _well(False, reason="No active listener", missing=int(port), ports=ports)

    @at("GET /health/checks/protocol-listener/{protocol}")
    async def check_protocol(self, ask: ManagementAsk) -> ManagementReply:
        asked = ask.names["protocol"].lower()
        protocol = _SAME_PROTOCOL.get(asked, asked)
        served = sorted({_PROTOCOLS[setting] for setting in self._facts.find_listeners()})
        if protocol in served:
            return reply({"status": "ok", "protocol": protocol})
        return _well(False, reason="No active listener", missing=asked[:80], protocols=served)

    @at("GET /health/checks/certificate-expiration/{within}/{unit}")
    async def check_certificate(self, ask: ManagementAsk) -> ManagementReply:
        within, unit = ask.names["within"], ask.names["unit"]
        if not (within.isascii() and within.isdecimal() and len(within) < 6) or unit not in _UNITS:
            raise bad_request(f"the time is a whole number of {', '.join(_UNITS)}")
        if {"https", "amqps"} & set(self._facts.find_listeners()):
            raise bad_request("when the certificate ends is not looked at here: ask the file, or `openssl s_client`")
        return _well(True)

    @at("GET /aliveness-test/{vhost}")
    async def check_alive(self, ask: ManagementAsk) -> ManagementReply:
        """Declare a queue, publish to it and get the message back, as whoever asks."""
        vhost = self._scope.vhost(ask)
        for need in ("configure", "write", "read"):
            self._scope.access.check(ask.account, vhost, _ALIVE, need)
        settings = settings_from_arguments(
            {},
            durable=False,
            exclusive=False,
            auto_delete=False,
            max_message_bytes=self._broker.limits.max_message_bytes,
        )
        there = self._broker.topology.queue(vhost, _ALIVE)
        declared = await self._broker.ask(i.DeclareQueue(vhost, _ALIVE, settings if there is None else None))
        queue, account = declared.info.queue, ask.account.name
        head = amqp_props_head(b"", _ALIVE.encode())
        await self._broker.ask(i.Publish((queue,), Messages([b"test_message"], [head + b"\0\0"]), None, i.HTTP))
        leased = await self._broker.ask(
            i.Lease(queue, 1, wait_ms=_ALIVE_MS, account=account, consumer="aliveness-test", protocol=i.HTTP)
        )
        if not len(leased):
            return _well(False, reason="the message that was published did not come back")
        await self._broker.ask(i.Ack(queue, leased.tokens(), account, i.HTTP))
        return _well(True)

    @at("POST /rebalance/queues")
    async def rebalance(self, ask: ManagementAsk) -> ManagementReply:
        """A queue's partition follows from its name; `laneway rebalance` moves queues."""
        self._scope.check_admin(ask.account)
        raise bad_request("queues are moved with `laneway rebalance` here, or with /rebalancing of the HTTP API")


def exchange_types() -> list[dict[str, Any]]:
    return [
        {"name": name, "description": f"AMQP {name} exchange, as per the AMQP specification", "enabled": True}
        for name in EXCHANGE_TYPES
    ] + [{"name": DELAYED_TYPE, "description": "holds messages back for their header x-delay", "enabled": True}]


def _well(is_well: bool, **why: Any) -> ManagementReply:
    return reply({"status": "ok"}) if is_well else reply({"status": "failed", **why}, 503)
