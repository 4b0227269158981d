"""Who is asking, and may they: the one place that every front end asks.

Everything durable goes through a document store (the journal, in the end). Memory follows the documents, whichever
process has changed them, and nothing else changes it: so all processes of a server let in the same callers. Everything
asked per request is answered from memory without awaiting, except a password seen for the first time. All calls are
made on the event loop.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgspec

from laneway.access.accounts import (
    ADMIN,
    GUEST,
    MONITOR,
    OPERATOR,
    TAGS,
    USER,
    AccessLimits,
    Account,
    KeyInfo,
    KeyKind,
    Login,
    LoginKind,
    Need,
    Permission,
    StoredAccount,
    StoredKey,
    TopicPermission,
    VhostPermission,
    check_label,
    check_name,
    check_password,
    check_permissions,
    check_roles,
    check_tags,
    check_topic_permission,
    check_vhost_permission,
    decode_account,
    decode_key,
    encode_document,
    roles_of_tags,
)
from laneway.access.failures import FailedLogins, Origin
from laneway.access.passwords import WELL_KNOWN_GUEST, hash_password, password_matches, unmatchable_hash
from laneway.access.patterns import Matcher, compile_pattern, regex_of
from laneway.errors import (
    AccountNotFound,
    Conflict,
    DocumentChanged,
    Forbidden,
    InvalidInput,
    LimitExceeded,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from laneway.regexes import Regex, compile_regex
from laneway.telemetry.floods import FloodLog

ACCOUNTS = "accounts"
KEYS = "keys"
KEY_PREFIX = "lw_"
ACCESS_KEY_PREFIX = "AKIA"

log = logging.getLogger("laneway.access")

_REMEMBERED_CHARS = 512  # longer names are none that queues have
_INSIDE = Origin()
_NOBODY = "the server itself"
_WRONG = "the account's name or its password is wrong"
_ATTEMPTS = 100  # of a change that others are always faster than

_T = TypeVar("_T")
_NEEDS: tuple[Need, ...] = ("configure", "write", "read", "stats")
_TOLD_NEEDS: tuple[Need, ...] = ("configure", "write", "read")  # in the order of VhostPermission
_MANAGING = frozenset({"administrator", "monitoring", "policymaker", "management"})
_SEEING: tuple[Need, ...] = ("stats", "write", "configure")


SeenDocument = tuple[str, str, bytes | None]  # collection, key, and the document as it was seen; None: there was none


class DocumentStore(Protocol):
    """Small durable documents by collection and key; the broker keeps them in its journal. A change is refused with
    DocumentChanged if what it rests on, `seen`, has been changed by another process meanwhile."""

    def documents(self, collection: str) -> dict[str, bytes]: ...
    def document(self, collection: str, key: str) -> bytes | None: ...
    def on_document(self, call: Callable[[str, str, bytes | None], None]) -> None:
        """Have this called with each document that is put or removed (None), before whoever did it is answered."""

    async def put_document(self, collection: str, key: str, document: bytes, seen: Sequence[SeenDocument]) -> None: ...
    async def remove_document(self, collection: str, key: str, seen: Sequence[SeenDocument]) -> None: ...


class _Held:
    """An account in memory with all that is derived from it. Never changed: a change of the account makes a new one,
    so whatever was decided about the old one is forgotten with it. That a password was verified is kept as long as
    the account has that password."""

    __slots__ = (
        "account",
        "decisions",
        "every_count",
        "every_queue",
        "password",
        "regexes",
        "rules",
        "topics",
        "verified",
    )

    def __init__(self, stored: StoredAccount, before: _Held | None = None) -> None:
        self.account = stored.account
        self.password = stored.password
        roles = stored.account.roles
        self.every_queue = ADMIN in roles or OPERATOR in roles
        self.every_count = MONITOR in roles
        self.rules: list[tuple[Matcher, Matcher, Permission]] = [
            (compile_pattern(p.vhost), compile_pattern(p.queue), p) for p in stored.account.permissions
        ]
        self.regexes: dict[tuple[str, str], Regex] = {
            (p.vhost, need): compile_regex(p.pattern(need), field=need)
            for p in stored.account.vhost_permissions
            for need in _NEEDS
            if p.pattern(need)
        }
        self.topics = {
            (p.vhost, p.exchange, need): _topic_regex(pattern, stored.account.name, p.vhost)
            for p in stored.account.topic_permissions
            for need, pattern in (("write", p.write), ("read", p.read))
        }
        self.decisions: dict[tuple[str, str, str], bool] = {}
        # The keyed hash of the password, once it was found to be right.
        self.verified: bytes | None = (
            before.verified if before is not None and before.password == stored.password else None
        )

    def decide(self, vhost: str, queue: str, need: Need) -> bool:
        if need == "stats" and self.every_count:
            return True
        if any(p.grants(need) and vhost_ok(vhost) and queue_ok(queue) for vhost_ok, queue_ok, p in self.rules):
            return True
        regex = self.regexes.get((vhost, need))
        return regex is not None and regex.is_found_in(queue)

    def enters(self, vhost: str) -> bool:
        return any(vhost_ok(vhost) for vhost_ok, _, _ in self.rules) or any(
            p.vhost == vhost for p in self.account.vhost_permissions
        )

    def tags(self) -> tuple[str, ...]:
        given, roles = self.account.tags, self.account.roles
        if given is not None and set(roles_of_tags(given)) == set(roles):
            return given
        return tuple(dict.fromkeys(tag for role in roles for tag in TAGS[role]))


_WELL_KNOWN = StoredAccount(account=Account(GUEST, (ADMIN,)), password=WELL_KNOWN_GUEST)


class Access:
    def __init__(
        self,
        store: DocumentStore,
        *,
        now_ms: Callable[[], int],
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
        limits: AccessLimits | None = None,
        elapsed_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        floods: FloodLog | None = None,
    ) -> None:
        self._store = store
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self._limits = limits or AccessLimits()
        self.version = 0  # what was found out about an account holds as long as this stays the same
        self._accounts: dict[str, _Held] = {}
        self._keys: dict[str, StoredKey] = {}  # by id; also of accounts that are gone, which open nothing
        self._keys_of: dict[str, dict[str, StoredKey]] = {}  # by account, then by id
        self._by_hash: dict[bytes, KeyInfo] = {}  # API keys, by their SHA-256
        self._secret = random_bytes(32)  # of this process: what it remembers of passwords is of no use elsewhere
        self._nobody = unmatchable_hash(random_bytes)
        self._changing = asyncio.Lock()
        self._listeners: list[Callable[[str], None]] = []
        self._unfinished: set[asyncio.Task[Any]] = set()
        self.failures = FailedLogins(self._limits, floods or FloodLog(), elapsed_ms)
        self._verifying = asyncio.Semaphore(self._limits.verifications_at_once)
        self._hashing = asyncio.Semaphore(1)  # new passwords: administration does not wait for strangers
        self._verifications_waiting = 0
        self._verifications: dict[bytes, asyncio.Future[bool]] = {}  # under way; the result: refused
        self._take_account(GUEST, None)
        for name, document in store.documents(ACCOUNTS).items():
            self._take_account(name, document)
        for key_id, document in store.documents(KEYS).items():
            self._take_key(key_id, document)
        store.on_document(self._follow)

    # --- what the documents say

    def _follow(self, collection: str, key: str, document: bytes | None) -> None:
        """A document was changed, by this process or another."""
        if collection == ACCOUNTS:
            self._take_account(key, document)
            self._changed(key)
        elif collection == KEYS:
            of = self._keys[key].info.account if key in self._keys else None
            self._take_key(key, document)
            if of is not None:
                self._changed(of)

    def _take_account(self, name: str, document: bytes | None) -> None:
        """Guest needs no document: it exists until a document says otherwise, one that changes it or one that says it
        was deleted. So a new data folder can be used at once, and a guest that was deleted stays deleted."""
        self.version += 1
        if document is not None:
            stored = decode_account(name, document)
        elif name == GUEST:
            stored = _WELL_KNOWN
        else:
            self._accounts.pop(name, None)
            return
        if stored.deleted:
            self._accounts.pop(name, None)
        else:
            self._accounts[name] = _Held(stored, self._accounts.get(name))

    def _take_key(self, key_id: str, document: bytes | None) -> None:
        self.version += 1
        before = self._keys.pop(key_id, None)
        if before is not None:
            del self._keys_of[before.info.account][key_id]
            self._by_hash.pop(_stored_hash(before), None)
        if document is not None:
            key = self._keys[key_id] = decode_key(key_id, document)
            self._keys_of.setdefault(key.info.account, {})[key_id] = key
            if key.info.kind == "api":
                self._by_hash[_stored_hash(key)] = key.info

    # --- who is asking

    def password_cached(self, name: str, password: str, *, from_loopback: bool) -> Account | None:
        """The account, if this very password was verified before and the account has not changed since."""
        held = self._accounts.get(name)
        if held is None or held.verified is None or (name == GUEST and not from_loopback):
            return None
        if hmac.compare_digest(held.verified, self._digest(name, password)):
            return held.account
        return None

    async def authenticate_password(
        self, name: str, password: str, *, from_loopback: bool, origin: Origin = _INSIDE
    ) -> Account:
        """The account, if the password is right. An unknown name takes as long as a wrong password."""
        self._check_guest(name, from_loopback, origin)
        if len(password) > self._limits.password_bytes:
            raise self.refused(origin, name, _WRONG)
        known = self.password_cached(name, password, from_loopback=from_loopback)
        if known is not None:
            return known
        # Many connections may come with one password at once, after a restart above all: it is verified once for them.
        digest = self._digest(name, password)
        while (other := self._verifications.get(digest)) is not None:
            await asyncio.wait([other])
            if other.result():
                raise self.refused(origin, name, _WRONG)
            known = self.password_cached(name, password, from_loopback=from_loopback)
            if known is not None:
                return known
        if self._verifications_waiting >= self._limits.verifications_waiting:
            raise Unavailable("too many passwords are waiting to be verified: try again in a moment, or use an API key")
        self.failures.begin(origin, name)
        self._verifications_waiting += 1
        done = self._verifications[digest] = asyncio.get_running_loop().create_future()
        refused = False
        try:
            async with self._verifying:
                account = await self._verify(name, password)
            if account is None:
                refused = True
                self.failures.failed(origin, name, _WRONG, is_counted=True)
                raise Unauthenticated(_WRONG)
            self.failures.succeeded(origin, name)
            return account
        finally:
            self._verifications_waiting -= 1
            del self._verifications[digest]
            done.set_result(refused)

    def authenticate_certificate(self, name: str, *, from_loopback: bool, origin: Origin = _INSIDE) -> Account:
        """The account of this name, of whoever has proved to have it by a certificate."""
        self._check_guest(name, from_loopback, origin)
        held = self._accounts.get(name)
        if held is None:
            raise self.refused(origin, name, "there is no account of the certificate's name")
        return held.account

    def _check_guest(self, name: str, from_loopback: bool, origin: Origin) -> None:
        if name == GUEST and not from_loopback:
            raise self.refused(
                origin,
                name,
                "guest can be used from this machine only, and not through a proxy: create an account to come from "
                "elsewhere",
            )

    async def _verify(self, name: str, password: str) -> Account | None:
        held = self._accounts.get(name)
        stored = held.password if held is not None else None
        matches = await asyncio.to_thread(password_matches, password, stored or self._nobody)
        # The account may have been deleted, or its password changed, while the hash was computed.
        current = self._accounts.get(name)
        if current is None or stored is None or not matches or current.password != stored:
            return None
        current.verified = self._digest(name, password)
        return current.account

    def refused(self, origin: Origin, name: str, why: str) -> Unauthenticated:
        """To be raised: a login that failed, which is counted and logged."""
        self.failures.failed(origin, name, why)
        return Unauthenticated(why)

    def knows_key(self, key: str) -> bool:
        info = self._by_hash.get(_key_hash(key))
        return info is not None and info.account in self._accounts

    def authenticate_key(self, key: str, origin: Origin = _INSIDE) -> Account:
        info = self._by_hash.get(_key_hash(key)) if key.startswith(KEY_PREFIX) else None
        held = self._accounts.get(info.account) if info is not None else None
        if held is None:
            self.failures.check(origin, "")  # looking it up costs nothing, so whoever has the right one never waits
            raise self.refused(origin, "", "this API key is not known: it may have been deleted")
        return held.account

    def signing_key(self, key_id: str) -> tuple[Account, str] | None:
        """The account and the secret of an AWS access key; None if there is no such key."""
        key = self._keys.get(key_id)
        held = self._accounts.get(key.info.account) if key is not None and key.info.kind == "aws" else None
        return (held.account, key.secret) if key is not None and held is not None else None

    def anonymous(self, *, from_loopback: bool) -> Account:
        """Guest, for a caller on this machine without credentials, as long as nobody set up anything else."""
        guest = self._accounts.get(GUEST)
        if not from_loopback:
            raise Unauthenticated("credentials are needed: an API key, or an account's name and password")
        # Whoever gave guest another password meant to keep others out, even without creating an account.
        if guest is None or not self.guest_only or guest.password != WELL_KNOWN_GUEST:
            raise Unauthenticated(
                "credentials are needed since the first account was created: an API key, or a name and password"
            )
        return guest.account

    @property
    def guest_only(self) -> bool:
        return all(name == GUEST for name in self._accounts)

    # --- logins that last: connections that prove who they are once

    def login(self, account: Account, by: LoginKind, secret: str = "") -> Login:
        """What `lost` needs to know of a login that was just accepted. `secret`: the API key, if it was one."""
        mark = ""
        if by == "password":
            mark = _password_mark(self._known(account.name).password)
        elif by == "key":
            mark = self._by_hash[_key_hash(secret)].key_id
        return Login(account, by, mark)

    def lost(self, login: Login) -> str:
        """Why a login would not be accepted now; empty if it would."""
        name = login.account.name
        held = self._current(login.account)
        if held is None:
            return f"user '{name}' was deleted"
        if login.by == "password" and _password_mark(held.password) != login.mark:
            return f"the password of user '{name}' was changed"
        if login.by == "key" and login.mark not in self._keys_of.get(name, {}):
            return f"the API key of user '{name}' was deleted"
        return ""

    def on_change(self, call: Callable[[str], None]) -> None:
        """Have this called with the name of each account that was changed or deleted, or that lost a key. Whoever has
        requests or connections under way must look at them again."""
        self._listeners.append(call)

    def _changed(self, name: str) -> None:
        """Documents change amid other work of the broker, which those who listen ask for more: in a turn of its own,
        and before whoever made the change is answered."""
        asyncio.get_running_loop().call_soon(self._tell, name)

    def _tell(self, name: str) -> None:
        for call in self._listeners:
            try:
                call(name)
            except Exception:  # one front end must not keep the others from hearing of it
                log.exception("connections of account %r could not be looked at", name)

    # --- may they

    def allowed(self, account: Account, vhost: str, queue: str, need: Need) -> bool:
        """What the account may do now: a change of its permissions counts at once, on open connections too."""
        held = self._current(account)
        if held is None:
            return False
        if held.every_queue:
            return True
        if len(vhost) + len(queue) > _REMEMBERED_CHARS:
            return held.decide(vhost, queue, need)
        asked = (vhost, queue, need)
        decision = held.decisions.get(asked)
        if decision is None:
            if len(held.decisions) >= self._limits.remembered_decisions_per_account:
                held.decisions.clear()
            decision = held.decisions[asked] = held.decide(vhost, queue, need)
        return decision

    def check(self, account: Account, vhost: str, queue: str, need: Need, *, noun: str = "queue") -> None:
        if not self.allowed(account, vhost, queue, need):
            raise Forbidden(
                f"account {account.name!r} has no {'read' if need == 'stats' else need} permission on {noun} {queue!r} "
                f"of virtual host {vhost!r}: an admin can grant it",
                need=need,
            )

    def topic_allowed(self, account: Account, vhost: str, exchange: str, routing_key: str, need: Need) -> bool:
        """Whether it may publish to a topic exchange with this key, or bind with it. For those that have no permission
        of that kind, and that is nearly everybody, nothing is looked at."""
        held = self._current(account)
        if held is None or not held.topics:
            return held is not None
        if (vhost, exchange, need) not in held.topics:
            return True
        regex = held.topics[vhost, exchange, need]
        return regex is not None and regex.is_found_in(routing_key)

    def check_topic(self, account: Account, vhost: str, exchange: str, routing_key: str, need: Need) -> None:
        if not self.topic_allowed(account, vhost, exchange, routing_key, need):
            raise Forbidden(
                f"account {account.name!r} may not {'publish to' if need == 'write' else 'bind to'} exchange "
                f"{exchange!r} with the routing key {routing_key[:80]!r}: an admin can allow it",
                need=need,
            )

    def may_see(self, account: Account, vhost: str, queue: str) -> bool:
        """Whether the account may know that there is a queue or exchange of this name."""
        return any(self.allowed(account, vhost, queue, need) for need in _SEEING)

    def may_everywhere(self, account: Account) -> bool:
        """Whether it may do everything with all queues, so that nobody need ask about each."""
        held = self._current(account)
        return held is not None and held.every_queue

    def may_enter(self, account: Account, vhost: str) -> bool:
        """Whether the account may do anything at all in a virtual host."""
        held = self._current(account)
        return held is not None and (held.every_queue or held.every_count or held.enters(vhost))

    def check_may_enter(self, account: Account, vhost: str) -> None:
        if not self.may_enter(account, vhost):
            raise Forbidden(
                f"account {account.name!r} has no permission in virtual host {vhost!r}: an admin can grant one"
            )

    def check_role(self, account: Account, *roles: str) -> None:
        """One of these roles is needed; admin is always enough."""
        held = self._current(account)
        if held is None or not (ADMIN in held.account.roles or any(role in held.account.roles for role in roles)):
            names = " or ".join(dict.fromkeys((*roles, ADMIN)))
            raise Forbidden(f"account {account.name!r} needs the role {names} for this", roles=[*roles])

    def tags_of(self, account: Account) -> list[str]:
        """What RabbitMQ's tools call its roles."""
        held = self._current(account)
        return [] if held is None else list(held.tags())

    def check_may_manage(self, account: Account) -> None:
        """Whether it may use the management API at all."""
        if not _MANAGING & set(self.tags_of(account)):
            raise Forbidden("Not management user")

    def check_policymaker(self, account: Account, vhost: str) -> None:
        """Whether it may change the policies of a virtual host."""
        if not {"administrator", "policymaker"} & set(self.tags_of(account)) or not self.may_enter(account, vhost):
            raise Forbidden("Not policymaker user")

    def check_admin(self, account: Account) -> None:
        self.check_role(account, ADMIN)

    def check_account_change(self, account: Account, name: str, *, only_password: bool) -> None:
        """An admin may change every account; everybody may change their own password."""
        if not (only_password and account.name == name and self._current(account) is not None):
            self.check_admin(account)

    def _current(self, account: Account) -> _Held | None:
        held = self._accounts.get(account.name)
        # A deleted account does not come back to life on an old connection when its name is taken again.
        if held is None or held.account.created_at_ms != account.created_at_ms:
            return None
        return held

    # --- accounts

    def accounts(self) -> list[Account]:
        return [self._accounts[name].account for name in sorted(self._accounts)]

    def account(self, name: str) -> Account:
        return self._known(name).account

    def has_password(self, name: str) -> bool:
        return self._known(name).password is not None

    async def put_account(
        self,
        name: str,
        *,
        password: str | None = None,
        roles: Sequence[str] | None = None,
        permissions: Sequence[Permission] | None = None,
        tags: Sequence[str] | None = None,
        password_hash: str | None = None,
        by: str = _NOBODY,
    ) -> Account:
        """Create an account or change it; None leaves that part as it is (or, of a new account: no password,
        the role user, no permissions). `tags` are RabbitMQ's, and say the roles; `password_hash` is in a stored form,
        see passwords.py, and an empty one takes the password away."""
        check_name(name, self._limits)
        wanted_tags = None if tags is None else check_tags(tags, self._limits)
        if wanted_tags is not None:
            roles = roles_of_tags(wanted_tags)
        wanted_roles = None if roles is None else check_roles(roles)
        wanted_permissions = None if permissions is None else check_permissions(permissions, self._limits)
        hashed = password_hash
        if password is not None:
            check_password(password, self._limits)
            async with self._hashing:
                hashed = await asyncio.to_thread(hash_password, password, self._random_bytes)
        return await self._change(lambda: self._put(name, hashed, wanted_roles, wanted_permissions, wanted_tags, by))

    async def put_vhost_permission(
        self, name: str, vhost: str, permission: VhostPermission | None, *, by: str = _NOBODY
    ) -> bool:
        """Give an account this permission in a virtual host, or none any more; whether it had one there."""
        if permission is not None:
            check_vhost_permission(permission, self._limits)
        added = [] if permission is None else [permission]
        what = "vhost_permissions"
        return await self._change(lambda: self._replace(name, what, lambda p: p.vhost == vhost, added, by))

    async def put_topic_permission(
        self, name: str, vhost: str, exchange: str | None, permission: TopicPermission | None, *, by: str = _NOBODY
    ) -> bool:
        """The same for the keys of an exchange, or (None) of all exchanges of the virtual host."""
        if permission is not None:
            check_topic_permission(permission, self._limits)
        added = [] if permission is None else [permission]

        def goes(p: TopicPermission) -> bool:
            return p.vhost == vhost and exchange in (None, p.exchange)

        return await self._change(lambda: self._replace(name, "topic_permissions", goes, added, by))

    async def _replace(
        self,
        name: str,
        what: str,
        goes: Callable[[Any], bool],
        added: Sequence[VhostPermission | TopicPermission],
        by: str,
    ) -> bool:
        """Take some permissions of a kind away from an account and give it others; whether some were taken away."""
        held = self._known(name)
        before = getattr(held.account, what)
        kept = [permission for permission in before if not goes(permission)]
        had_some = len(kept) < len(before)
        if not added and not had_some:
            return False
        if added and len(kept) >= self._limits.permissions_per_account:
            most = self._limits.permissions_per_account
            raise LimitExceeded(f"account {name!r} has {most} {what} already", field="vhost")
        after = msgspec.structs.replace(held.account, **{what: (*kept, *added)})
        stored = StoredAccount(account=after, password=held.password)
        await self._store.put_document(ACCOUNTS, name, encode_document(stored), [self._seen(ACCOUNTS, name)])
        log.info("%s of account %r %s by %s", what, name, "given" if added else "taken away", by)
        return had_some

    def permission_in(self, account: Account, vhost: str) -> VhostPermission | None:
        """What an account may do in a virtual host, as RabbitMQ's tools say it; None if nothing. What was given so is
        told as it was given; else it is made of roles and of the other permissions."""
        held = self._known(account.name)
        given = next((p for p in held.account.vhost_permissions if p.vhost == vhost), None)
        if given is not None or not (held.every_queue or held.enters(vhost)):
            return given
        if held.every_queue:
            return VhostPermission(vhost, ".*", ".*", ".*")
        here = [p for vhost_ok, _, p in held.rules if vhost_ok(vhost)]
        return VhostPermission(
            vhost, *("|".join(regex_of(p.queue) for p in here if p.grants(need)) for need in _TOLD_NEEDS)
        )

    def password_hash(self, name: str) -> str | None:
        """The stored form of its password, for who takes all accounts elsewhere."""
        return self._known(name).password

    async def _put(
        self,
        name: str,
        hashed: str | None,
        roles: tuple[str, ...] | None,
        permissions: tuple[Permission, ...] | None,
        tags: tuple[str, ...] | None,
        by: str,
    ) -> Account:
        held = self._accounts.get(name)
        if held is None and len(self._accounts) >= self._limits.accounts:
            most = self._limits.accounts
            raise LimitExceeded(f"there are {most} accounts already: delete one first", field="name")
        before = held.account if held is not None else Account(name, (USER,), created_at_ms=self._now_ms())
        after = msgspec.structs.replace(
            before,
            roles=before.roles if roles is None else roles,
            permissions=before.permissions if permissions is None else permissions,
            tags=before.tags if tags is None else tags,
        )
        seen = [self._seen(ACCOUNTS, name)]
        if held is not None and ADMIN in before.roles and ADMIN not in after.roles:
            seen += self._admin_without(name)
        if held is None:  # keys that a crash has left of another account of this name must not open the new one
            await self._remove_keys(name, by)
        known = held.password if held is not None else None
        stored = StoredAccount(account=after, password=known if hashed is None else hashed or None)
        await self._store.put_document(ACCOUNTS, name, encode_document(stored), seen)
        parts = {"password": hashed, "roles": roles, "permissions": permissions}
        log.info(
            "account %r %s by %s: roles %s; given: %s",
            name,
            "created" if held is None else "changed",
            by,
            ", ".join(after.roles) or "none",
            ", ".join(part for part, given in parts.items() if given is not None) or "nothing",
        )
        return after

    async def delete_account(self, name: str, *, by: str = _NOBODY) -> None:
        """Delete an account, then its keys: without their account they open nothing."""
        await self._change(lambda: self._delete(name, by))

    async def _delete(self, name: str, by: str) -> None:
        held = self._known(name)
        seen = [self._seen(ACCOUNTS, name), *self._admin_without(name)]
        if name == GUEST:
            deleted = StoredAccount(account=held.account, deleted=True)
            await self._store.put_document(ACCOUNTS, name, encode_document(deleted), seen)
        else:
            await self._store.remove_document(ACCOUNTS, name, seen)
        log.info("account %r deleted by %s", name, by)
        await self._remove_keys(name, by)

    def _admin_without(self, name: str, *, key_id: str | None = None) -> list[SeenDocument]:
        """What says that somebody stays who can manage accounts, and who has a password or a key to come in with.

        Asked before an account stops being an admin (key_id None) or before one of its keys is deleted.
        """
        if ADMIN not in self._accounts[name].account.roles:
            return []
        for other_name, other in self._accounts.items():
            if ADMIN not in other.account.roles or (other_name == name and key_id is None):
                continue
            if other.password is not None:
                return [self._seen(ACCOUNTS, other_name)]
            for other_id, key in self._keys_of.get(other_name, {}).items():
                if key.info.kind == "api" and other_id != key_id:
                    return [self._seen(ACCOUNTS, other_name), self._seen(KEYS, other_id)]
        raise Conflict(
            f"account {name!r} is the last admin that can log in: create another admin first, "
            "with a password or an API key"
        )

    def _seen(self, collection: str, key: str) -> SeenDocument:
        return collection, key, self._store.document(collection, key)

    def _known(self, name: str) -> _Held:
        held = self._accounts.get(name)
        if held is None:
            raise AccountNotFound(f"there is no account {name!r}", field="name")
        return held

    # --- API keys

    async def create_key(
        self, account_name: str, label: str = "", kind: KeyKind = "api", *, by: str = _NOBODY
    ) -> tuple[str, str]:
        """(key id, the key or the secret): the only time that is seen."""
        check_label(label, self._limits)
        return await self._change(lambda: self._create_key(account_name, label, kind, by))

    async def _create_key(self, account_name: str, label: str, kind: KeyKind, by: str) -> tuple[str, str]:
        self._known(account_name)
        if account_name == GUEST:
            # A key would work from anywhere, which guest must not.
            raise InvalidInput("guest has no API keys: create an account first", field="name")
        if len(self.keys(account_name)) >= self._limits.keys_per_account:
            raise LimitExceeded(
                f"account {account_name!r} has {self._limits.keys_per_account} keys already: delete one first",
                field="name",
            )
        if kind == "aws":  # as long as AWS's own, for clients and people who check
            key = base64.b64encode(self._random_bytes(30)).decode()
            key_id = ACCESS_KEY_PREFIX + base64.b32encode(self._random_bytes(10)).decode()
            stored = StoredKey(info=KeyInfo(key_id, account_name, label, self._now_ms(), kind), secret=key)
        else:
            key = KEY_PREFIX + _base64url(self._random_bytes(32))
            key_id = "k" + self._random_bytes(8).hex()
            info = KeyInfo(key_id, account_name, label, self._now_ms())
            stored = StoredKey(info=info, sha256=_key_hash(key).hex())
        seen = [self._seen(ACCOUNTS, account_name), (KEYS, key_id, None)]
        await self._store.put_document(KEYS, key_id, encode_document(stored), seen)
        log.info("key %r (%s) of account %r created by %s", key_id, kind, account_name, by)
        return key_id, key

    def keys(self, account_name: str) -> list[KeyInfo]:
        self._known(account_name)
        mine = [key.info for key in self._keys_of.get(account_name, {}).values()]
        return sorted(mine, key=lambda info: (info.created_at_ms, info.key_id))

    async def delete_key(self, account_name: str, key_id: str, *, by: str = _NOBODY) -> None:
        await self._change(lambda: self._delete_key(account_name, key_id, by))

    async def _delete_key(self, account_name: str, key_id: str, by: str) -> None:
        self._known(account_name)
        key = self._keys_of.get(account_name, {}).get(key_id)
        if key is None:
            raise NotFound(f"account {account_name!r} has no key {key_id!r}", field="key_id")
        seen = self._admin_without(account_name, key_id=key_id) if key.info.kind == "api" else []
        await self._remove_key(key.info, seen, by)

    async def _remove_keys(self, account_name: str, by: str) -> None:
        """Of an account that is not there: those that it leaves now, and not of one that is created meanwhile."""
        for key in list(self._keys_of.get(account_name, {}).values()):
            with suppress(DocumentChanged):  # another process has removed it
                await self._remove_key(key.info, [], by)

    async def _remove_key(self, info: KeyInfo, seen: Sequence[SeenDocument], by: str) -> None:
        await self._store.remove_document(KEYS, info.key_id, [*seen, self._seen(KEYS, info.key_id)])
        log.info("key %r (%s) of account %r deleted by %s", info.key_id, info.kind, info.account, by)

    async def _change(self, attempt: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """One change after the other, and again when another process was faster. A change once begun is finished even
        if whoever asked for it goes away."""
        task = asyncio.ensure_future(self._until_done(attempt))
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        return await asyncio.shield(task)

    async def _until_done(self, attempt: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        async with self._changing:
            for _ in range(_ATTEMPTS):
                try:
                    return await attempt()
                except DocumentChanged:
                    continue
            raise Unavailable("other processes change accounts all the time: try again in a moment")

    def _digest(self, name: str, password: str) -> bytes:
        text = f"{name}:{password}".encode("utf-8", "surrogatepass")  # a name has no colon
        return hashlib.blake2b(text, key=self._secret, digest_size=32).digest()


def _password_mark(stored: str | None) -> str:
    """Tells one password of an account from the next, and nothing else: stored hashes are salted."""
    return hashlib.sha256((stored or "").encode()).hexdigest()[:16]


def _topic_regex(pattern: str, name: str, vhost: str) -> Regex | None:
    """None: no key is allowed."""
    pattern = pattern.replace("{username}", re.escape(name)).replace("{vhost}", re.escape(vhost))
    return compile_regex(pattern, field="topic_permissions") if pattern else None


def _stored_hash(key: StoredKey) -> bytes:
    return bytes.fromhex(key.sha256)


def _key_hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
