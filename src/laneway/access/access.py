"""Who is asking, and may they: the one place that every front end asks.

Everything durable goes through a document store (the journal, in the end); everything asked per request is answered
from memory without awaiting, except a password seen for the first time. All calls are made on the event loop.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from laneway.access.accounts import (
    ADMIN,
    GUEST,
    MONITOR,
    OPERATOR,
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
    check_label,
    check_name,
    check_password,
    check_permissions,
    check_roles,
    decode_account,
    decode_key,
    encode_document,
)
from laneway.access.failures import FailedLogins, Origin
from laneway.access.passwords import WELL_KNOWN_GUEST, hash_password, password_matches, unmatchable_hash
from laneway.access.patterns import Matcher, compile_pattern
from laneway.errors import (
    AccountNotFound,
    Conflict,
    Forbidden,
    InvalidInput,
    LimitExceeded,
    NotFound,
    Unauthenticated,
    Unavailable,
)
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

_T = TypeVar("_T")
_SEEING: tuple[Need, ...] = ("stats", "write", "configure")


class DocumentStore(Protocol):
    """Small durable documents by collection and key; the broker keeps them in its journal."""

    def documents(self, collection: str) -> dict[str, bytes]: ...
    async def put_document(self, collection: str, key: str, document: bytes) -> None: ...
    async def remove_document(self, collection: str, key: str) -> None: ...


class _Held:
    """An account in memory with all that is derived from it. Never changed: a change of the account makes a new one,
    so whatever was decided about the old one is forgotten with it. That a password was verified is kept as long as
    the account has that password."""

    __slots__ = ("account", "decisions", "every_count", "every_queue", "password", "rules", "verified")

    def __init__(self, stored: StoredAccount, before: _Held | None = None) -> None:
        self.account = stored.account
        self.password = stored.password
        roles = stored.account.roles
        self.every_queue = ADMIN in roles or OPERATOR in roles
        self.every_count = MONITOR in roles
        self.rules: list[tuple[Matcher, Matcher, Permission]] = [
            (compile_pattern(p.vhost), compile_pattern(p.queue), p) for p in stored.account.permissions
        ]
        self.decisions: dict[tuple[str, str, str], bool] = {}
        # The keyed hash of the password, once it was found to be right.
        self.verified: bytes | None = (
            before.verified if before is not None and before.password == stored.password else None
        )

    def decide(self, vhost: str, queue: str, need: Need) -> bool:
        if need == "stats" and self.every_count:
            return True
        return any(p.grants(need) and vhost_ok(vhost) and queue_ok(queue) for vhost_ok, queue_ok, p in self.rules)


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
        self._keys: dict[bytes, KeyInfo] = {}  # by the SHA-256 of the key
        self._key_hashes: dict[str, dict[str, bytes]] = {}  # account -> key id -> SHA-256
        self._access_keys: dict[str, StoredKey] = {}  # AWS's kind, by key id
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
        self.reload()

    def reload(self) -> None:
        """Take everything from the store again.

        Guest needs no document: it exists until a document says otherwise, one that changes it or one that says it
        was deleted. So a new data folder can be used at once, and a guest that was deleted stays deleted.
        """
        stored = {name: decode_account(name, doc) for name, doc in self._store.documents(ACCOUNTS).items()}
        stored.setdefault(GUEST, _WELL_KNOWN)
        self._accounts = {name: _Held(one) for name, one in stored.items() if not one.deleted}
        self.version += 1
        self._keys, self._key_hashes, self._access_keys = {}, {}, {}
        for key_id, document in self._store.documents(KEYS).items():
            key = decode_key(key_id, document)
            if key.info.account in self._accounts:
                self._hold_key(key)

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
        info = self._keys.get(_key_hash(key))
        return info is not None and info.account in self._accounts

    def authenticate_key(self, key: str, origin: Origin = _INSIDE) -> Account:
        info = self._keys.get(_key_hash(key)) if key.startswith(KEY_PREFIX) else None
        held = self._accounts.get(info.account) if info is not None else None
        if held is None:
            self.failures.check(origin, "")  # looking it up costs nothing, so whoever has the right one never waits
            raise self.refused(origin, "", "this API key is not known: it may have been deleted")
        return held.account

    def signing_key(self, key_id: str) -> tuple[Account, str] | None:
        """The account and the secret of an AWS access key; None if there is no such key."""
        key = self._access_keys.get(key_id)
        held = self._accounts.get(key.info.account) if key is not None else None
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
            mark = self._keys[_key_hash(secret)].key_id
        return Login(account, by, mark)

    def lost(self, login: Login) -> str:
        """Why a login would not be accepted now; empty if it would."""
        name = login.account.name
        held = self._current(login.account)
        if held is None:
            return f"user '{name}' was deleted"
        if login.by == "password" and _password_mark(held.password) != login.mark:
            return f"the password of user '{name}' was changed"
        if login.by == "key" and login.mark not in self._key_hashes.get(name, {}):
            return f"the API key of user '{name}' was deleted"
        return ""

    def on_change(self, call: Callable[[str], None]) -> None:
        """Have this called with the name of each account that was changed or deleted, or that lost a key. Whoever has
        requests or connections under way must look at them again."""
        self._listeners.append(call)

    def _changed(self, name: str) -> None:
        self.version += 1
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
        return held is not None and (
            held.every_queue or held.every_count or any(vhost_ok(vhost) for vhost_ok, _, _ in held.rules)
        )

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
        by: str = _NOBODY,
    ) -> Account:
        """Create an account or change it; None leaves that part as it is (or, of a new account: no password,
        the role user, no permissions)."""
        check_name(name, self._limits)
        wanted_roles = None if roles is None else check_roles(roles)
        wanted_permissions = None if permissions is None else check_permissions(permissions, self._limits)
        hashed = None
        if password is not None:
            check_password(password, self._limits)
            async with self._hashing:
                hashed = await asyncio.to_thread(hash_password, password, self._random_bytes)
        return await self._to_the_end(self._put(name, hashed, wanted_roles, wanted_permissions, by))

    async def _put(
        self,
        name: str,
        hashed: str | None,
        roles: tuple[str, ...] | None,
        permissions: tuple[Permission, ...] | None,
        by: str,
    ) -> Account:
        async with self._changing:
            held = self._accounts.get(name)
            if held is None and len(self._accounts) >= self._limits.accounts:
                most = self._limits.accounts
                raise LimitExceeded(f"there are {most} accounts already: delete one first", field="name")
            before = held.account if held is not None else Account(name, (USER,), created_at_ms=self._now_ms())
            after = Account(
                name=name,
                roles=before.roles if roles is None else roles,
                permissions=before.permissions if permissions is None else permissions,
                created_at_ms=before.created_at_ms,
            )
            if held is not None and ADMIN in before.roles and ADMIN not in after.roles:
                self._check_admin_remains_without(name)
            stored = StoredAccount(account=after, password=hashed or (held.password if held is not None else None))
            await self._store.put_document(ACCOUNTS, name, encode_document(stored))
            self._accounts[name] = _Held(stored, held)
            parts = {"password": hashed, "roles": roles, "permissions": permissions}
            log.info(
                "account %r %s by %s: roles %s; given: %s",
                name,
                "created" if held is None else "changed",
                by,
                ", ".join(after.roles) or "none",
                ", ".join(part for part, given in parts.items() if given is not None) or "nothing",
            )
            self._changed(name)
            return after

    async def delete_account(self, name: str, *, by: str = _NOBODY) -> None:
        """Delete an account and its keys: the keys first, so that none can outlive its account."""
        await self._to_the_end(self._delete(name, by))

    async def _delete(self, name: str, by: str) -> None:
        async with self._changing:
            held = self._known(name)
            self._check_admin_remains_without(name)
            for info in self.keys(name):
                await self._remove_key(info, by)
            if name == GUEST:
                deleted = StoredAccount(account=held.account, deleted=True)
                await self._store.put_document(ACCOUNTS, name, encode_document(deleted))
            else:
                await self._store.remove_document(ACCOUNTS, name)
            del self._accounts[name]
            log.info("account %r deleted by %s", name, by)
            self._changed(name)

    def _check_admin_remains_without(self, name: str, *, key_id: str | None = None) -> None:
        """Somebody must stay who can manage accounts, and who has a password or a key to come in with.

        Asked before an account stops being an admin (key_id None) or before one of its keys is deleted.
        """
        for other in self._accounts.values():
            if ADMIN not in other.account.roles or (other.account.name == name and key_id is None):
                continue
            keys = self._key_hashes.get(other.account.name, {})
            if other.password is not None or any(other_id != key_id for other_id in keys):
                return
        if ADMIN in self._accounts[name].account.roles:
            raise Conflict(
                f"account {name!r} is the last admin that can log in: create another admin first, "
                "with a password or an API key"
            )

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
        return await self._to_the_end(self._create_key(account_name, label, kind, by))

    async def _create_key(self, account_name: str, label: str, kind: KeyKind, by: str) -> tuple[str, str]:
        async with self._changing:
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
            await self._store.put_document(KEYS, key_id, encode_document(stored))
            self._hold_key(stored)
            log.info("key %r (%s) of account %r created by %s", key_id, kind, account_name, by)
            return key_id, key

    def keys(self, account_name: str) -> list[KeyInfo]:
        self._known(account_name)
        mine = [self._keys[sha256] for sha256 in self._key_hashes.get(account_name, {}).values()]
        mine += [key.info for key in self._access_keys.values() if key.info.account == account_name]
        return sorted(mine, key=lambda info: (info.created_at_ms, info.key_id))

    async def delete_key(self, account_name: str, key_id: str, *, by: str = _NOBODY) -> None:
        await self._to_the_end(self._delete_key(account_name, key_id, by))

    async def _delete_key(self, account_name: str, key_id: str, by: str) -> None:
        async with self._changing:
            for info in self.keys(account_name):
                if info.key_id == key_id:
                    self._check_admin_remains_without(account_name, key_id=key_id)
                    return await self._remove_key(info, by)
            raise NotFound(f"account {account_name!r} has no key {key_id!r}", field="key_id")

    async def _remove_key(self, info: KeyInfo, by: str) -> None:
        await self._store.remove_document(KEYS, info.key_id)
        log.info("key %r (%s) of account %r deleted by %s", info.key_id, info.kind, info.account, by)
        if info.kind == "aws":
            del self._access_keys[info.key_id]
        else:
            del self._keys[self._key_hashes[info.account].pop(info.key_id)]
        self._changed(info.account)

    def _hold_key(self, key: StoredKey) -> None:
        self.version += 1
        if key.info.kind == "aws":
            self._access_keys[key.info.key_id] = key
            return
        sha256 = bytes.fromhex(key.sha256)
        self._keys[sha256] = key.info
        self._key_hashes.setdefault(key.info.account, {})[key.info.key_id] = sha256

    async def _to_the_end(self, change: Coroutine[Any, Any, _T]) -> _T:
        """A change once begun is finished even if whoever asked for it goes away, or memory and store would differ."""
        task = asyncio.ensure_future(change)
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        return await asyncio.shield(task)

    def _digest(self, name: str, password: str) -> bytes:
        text = f"{name}:{password}".encode("utf-8", "surrogatepass")  # a name has no colon
        return hashlib.blake2b(text, key=self._secret, digest_size=32).digest()


def _password_mark(stored: str | None) -> str:
    """Tells one password of an account from the next, and nothing else: stored hashes are salted."""
    return hashlib.sha256((stored or "").encode()).hexdigest()[:16]


def _key_hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
