"""From the first byte to the open virtual host: who is there, what are the sizes, where do they want to work.

client: protocol header · start-ok · tune-ok · open          server: start · tune · open-ok
"""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING, Any

from laneway.access import Account, LoginKind, Origin
from laneway.core.field_tables import Malformed, decode_table
from laneway.errors import LanewayError, Refused
from laneway.frontends.amqp.errors import AmqpError, not_allowed
from laneway.frontends.amqp.spec import BY_NAME, FRAME_MIN_BYTES, Arguments, encode

if TYPE_CHECKING:
    from laneway.frontends.amqp.connection import AmqpConnection

log = logging.getLogger("laneway.amqp")

MECHANISMS = ("PLAIN", "AMQPLAIN", "EXTERNAL")
KEY_PREFIX = "lw_"
_SHOWN_PROPERTIES, _SHOWN_TEXT = 16, 200  # of a client: so many, of so many characters

_START_OK = BY_NAME["connection.start-ok"].number
_TUNE_OK = BY_NAME["connection.tune-ok"].number
_OPEN = BY_NAME["connection.open"].number


class Handshake:
    def __init__(self, connection: AmqpConnection) -> None:
        self._connection = connection
        self._shared = connection.shared
        self.state = "starting"
        self._mechanism = ""

    def start(self) -> None:
        offered = [name for name in MECHANISMS if name != "EXTERNAL" or self._connection.peer_name() is not None]
        self._connection.write(
            encode("connection.start", 0, 0, 9, self._shared.server_properties(), " ".join(offered), "en_US")
        )

    def on_method(self, arguments: Arguments) -> None:
        number = arguments.method.number
        if self.state == "starting" and number == _START_OK:
            self._start_ok(arguments)
        elif self.state == "tuning" and number == _TUNE_OK:
            self._tune_ok(arguments)
        elif self.state == "opening" and number == _OPEN:
            self._open(arguments)
        else:
            raise AmqpError(504, f"unexpected method in connection state {self.state}")

    # --- who

    def _start_ok(self, a: Arguments) -> None:
        capabilities = a.client_properties.get("capabilities")
        self._connection.client_capabilities = capabilities if isinstance(capabilities, dict) else {}
        self._connection.client_properties = shown_properties(a.client_properties)
        self._mechanism = a.mechanism
        if a.mechanism == "EXTERNAL" and self._connection.peer_name() is not None:
            self._external()
            return
        if a.mechanism not in ("PLAIN", "AMQPLAIN"):
            raise AmqpError(503, f"unknown authentication mechanism '{a.mechanism}'")
        name, password = (_plain if a.mechanism == "PLAIN" else _amqplain)(a.response)
        self._log_in(name, password)

    def _external(self) -> None:
        """The certificate was checked when the connection was made; its common name is the account."""
        name = self._connection.peer_name() or ""
        try:
            account = self._shared.access.authenticate_certificate(
                name, from_loopback=self._connection.peer.is_here, origin=self._origin()
            )
        except LanewayError as refused:
            self._refuse(refused)
        else:
            self._logged_in(account, "certificate")

    def _log_in(self, name: str, password: str) -> None:
        access, local = self._shared.access, self._connection.peer.is_here
        by: LoginKind = "password"
        try:
            account = access.password_cached(name, password, from_loopback=local)
            if account is None and password.startswith(KEY_PREFIX):
                account, by = access.authenticate_key(password, self._origin()), "key"
                if name not in ("", account.name):
                    raise access.refused(self._origin(), name, "the API key is another account's")
        except LanewayError as refused:
            self._refuse(refused)
            return
        if account is not None:
            self._logged_in(account, by, password)
            return
        self._connection.hold()
        self._shared.begin(self._check_password(name, password))

    async def _check_password(self, name: str, password: str) -> None:
        connection = self._connection
        try:
            account = await self._shared.access.authenticate_password(
                name, password, from_loopback=connection.peer.is_here, origin=self._origin()
            )
        except LanewayError as refused:
            if not connection.is_gone:
                self._refuse(refused)
        else:
            if not connection.is_gone:
                self._logged_in(account, "password")
        connection.release()

    def _origin(self) -> Origin:
        peer = self._connection.peer
        return Origin(f"AMQP {self._mechanism}", str(peer), peer.address)

    def _refuse(self, reason: LanewayError) -> None:
        if isinstance(reason, Refused):  # nothing is wrong with it: the client may try again
            self._connection.end(AmqpError(320, reason.message, method=0))
            return
        if self._connection.client_capabilities.get("authentication_failure_close") is not True:
            self._connection.abort_soon()
            return
        self._connection.end(
            AmqpError(
                403,
                f"Login was refused using authentication mechanism {self._mechanism}. "
                "For details see the broker logfile.",
                ends_connection=True,
                method=0,
            )
        )

    def _logged_in(self, account: Account, by: LoginKind, secret: str = "") -> None:
        limits = self._shared.limits
        self._connection.account = account
        self._connection.login = self._shared.access.login(account, by, secret)
        self.state = "tuning"
        self._connection.write(
            encode("connection.tune", 0, limits.channel_count, limits.frame_bytes, limits.heartbeat_s)
        )

    # --- sizes

    def _tune_ok(self, a: Arguments) -> None:
        limits, connection = self._shared.limits, self._connection
        _check_negotiated("frame_max", a.frame_max, FRAME_MIN_BYTES, limits.frame_bytes)
        _check_negotiated("channel_max", a.channel_max, 1, limits.channel_count)
        connection.set_frame_bytes(a.frame_max or limits.frame_bytes)
        connection.channel_max = a.channel_max or limits.channel_count
        connection.heartbeat_s = a.heartbeat
        self.state = "opening"

    # --- where

    def _open(self, a: Arguments) -> None:
        vhost, account = a.virtual_host, self._connection.account
        assert account is not None
        # Asked first: whoever may not enter is not told whether it is there.
        if not self._shared.access.may_enter(account, vhost):
            raise not_allowed(f"access to vhost '{vhost}' refused for user '{account.name}'")
        if not self._shared.broker.topology.has_vhost(vhost):
            raise not_allowed(f"vhost {vhost} not found")
        self.state = "running"
        self._connection.vhost = vhost
        self._connection.opened()


def _check_negotiated(name: str, value: int, lowest: int, highest: int) -> None:
    if value == 0:
        return  # the client leaves it to the server
    if value < lowest:
        raise not_allowed(f"negotiated {name} = {value} is lower than the minimum allowed value ({lowest})")
    if value > highest:
        raise not_allowed(f"negotiated {name} = {value} is higher than the maximum allowed value ({highest})")


def _plain(response: bytes) -> tuple[str, str]:
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise AmqpError(501, "the response of PLAIN is \\0, the name, \\0, the password")
    return parts[1].decode("utf-8", "replace"), parts[2].decode("utf-8", "surrogateescape")


def _amqplain(response: bytes) -> tuple[str, str]:
    try:
        table = decode_table(len(response).to_bytes(4, "big") + response, 0)[0]
    except Malformed:
        table = {}
    name, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(name, str) or not isinstance(password, str):
        raise AmqpError(501, "AMQPLAIN auth info is not a table with LOGIN and PASSWORD")
    return name, password


def shown_properties(given: dict[str, Any]) -> dict[str, str | int | bool]:
    """Of what a client says of itself, as much as is kept for people who list connections."""
    shown: dict[str, str | int | bool] = {}
    for name, value in given.items():
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        if isinstance(text, str):
            shown[name[:_SHOWN_TEXT]] = text[:_SHOWN_TEXT]
        elif isinstance(text, int | bool):
            shown[name[:_SHOWN_TEXT]] = text
        if len(shown) >= _SHOWN_PROPERTIES:
            break
    return shown


def common_name(tls: ssl.SSLObject | None) -> str | None:
    """Of the client's certificate, if it showed one (it was verified then)."""
    certificate: dict[str, Any] = (tls.getpeercert() if tls is not None else None) or {}
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return names[0] if names else None
