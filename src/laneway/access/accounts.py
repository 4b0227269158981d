"""Accounts, permissions and keys as values: what they hold, what is allowed in them, and how they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from laneway.errors import InvalidInput, LimitExceeded, StartError
from laneway.regexes import compile_regex

Need = Literal["read", "write", "configure", "stats"]
"""What a caller wants of a queue. `stats` is the part of reading that shows no message: describing, counting."""

GUEST = "guest"

ADMIN = "admin"  # everything, accounts included
OPERATOR = "operator"  # every queue, read, write and configure; tasks; no accounts
MONITOR = "monitor"  # lists, describes and counts every queue; sees no message
USER = "user"  # what its permissions say
ROLES = (ADMIN, OPERATOR, MONITOR, USER)

MAX_TAGS = 32

#: The tags that RabbitMQ's tools are told instead.
TAGS = {
    ADMIN: ("administrator",),
    OPERATOR: ("policymaker", "monitoring"),
    MONITOR: ("monitoring",),
    USER: ("management",),
}


class AccessLimits(msgspec.Struct, frozen=True, kw_only=True):
    accounts: int = 10_000
    keys_per_account: int = 100
    permissions_per_account: int = 256
    name_bytes: int = 255
    pattern_bytes: int = 255
    label_bytes: int = 255
    password_bytes: int = 1024
    verifications_at_once: int = 2
    verifications_waiting: int = 256
    failures_per_name: int = 20  # logins that failed, of one account name from one address, before it has to wait
    failures_per_address: int = 100  # … of all names
    failure_of_name_ms: int = 3_000  # after which one is forgiven
    failure_of_address_ms: int = 1_000
    remembered_decisions_per_account: int = 10_000


class Permission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is allowed on the queues whose name and virtual host match these patterns."""

    queue: str = "*"
    vhost: str = "*"
    read: bool = False
    write: bool = False
    configure: bool = False

    def grants(self, need: Need) -> bool:
        if need == "write":
            return self.write
        if need == "configure":
            return self.configure
        return self.read


class VhostPermission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is allowed in one virtual host, as RabbitMQ's tools say it: a regular expression for each need, which is
    looked for in the names of queues and exchanges. An empty one allows nothing."""

    vhost: str
    configure: str = ""
    write: str = ""
    read: str = ""

    def pattern(self, need: Need) -> str:
        return self.read if need == "stats" else str(getattr(self, need))


class TopicPermission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With which routing keys an account may publish to a topic exchange (`write`) and bind to it (`read`): regular
    expressions again, in which {username} and {vhost} stand for what they say. An exchange of which nothing is said
    takes all keys."""

    vhost: str
    exchange: str
    write: str = ""
    read: str = ""


class Account(msgspec.Struct, frozen=True):
    """Who is asking. Holds no secret, so it may be shown, kept and passed around."""

    name: str
    roles: tuple[str, ...] = ()
    permissions: tuple[Permission, ...] = ()
    created_at_ms: int = 0
    vhost_permissions: tuple[VhostPermission, ...] = ()  # what they allow is added to what the others do
    topic_permissions: tuple[TopicPermission, ...] = ()
    tags: tuple[str, ...] | None = None  # as RabbitMQ's tools gave them; they count as long as they mean these roles


LoginKind = Literal["password", "key", "certificate"]


class Login(msgspec.Struct, frozen=True):
    """How a connection proved who it is: enough to tell later whether that would still be accepted."""

    account: Account
    by: LoginKind
    mark: str = ""  # of the password that the account had, or the id of the key


KeyKind = Literal["api", "aws"]
"""`api`: one word that is sent as it is (Bearer). `aws`: an access key id, and a secret that requests are signed with
and that is never sent."""


class KeyInfo(msgspec.Struct, frozen=True):
    """A key as it may be shown: never the key itself, or the secret."""

    key_id: str
    account: str
    label: str
    created_at_ms: int
    kind: KeyKind = "api"


class StoredAccount(msgspec.Struct, frozen=True, kw_only=True):
    """The document of an account. `deleted` marks that guest was deleted on purpose, so it does not come back."""

    account: Account
    password: str | None = None  # see passwords.py; None: this account has keys only
    deleted: bool = False


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """The document of a key. Of an API key only the SHA-256, in hex, is kept. The secret of an AWS access key is kept
    as it is: a signature is an HMAC under the secret, so whoever verifies one needs the secret itself."""

    info: KeyInfo
    sha256: str = ""
    secret: str = ""


def encode_document(document: StoredAccount | StoredKey) -> bytes:
    return msgspec.json.encode(document)


def decode_account(key: str, document: bytes) -> StoredAccount:
    try:
        return msgspec.json.decode(document, type=StoredAccount)
    except msgspec.DecodeError as error:
        raise StartError(f"the stored account {key!r} cannot be read: {error}") from error


def decode_key(key: str, document: bytes) -> StoredKey:
    try:
        return msgspec.json.decode(document, type=StoredKey)
    except msgspec.DecodeError as error:
        raise StartError(f"the stored key {key!r} cannot be read: {error}") from error


def check_name(name: str, limits: AccessLimits) -> str:
    """An account's name: no colon, because HTTP's Basic authentication ends the name at the first one."""
    _check_text(name, "name", 1, limits.name_bytes)
    if ":" in name:
        raise InvalidInput(f"an account's name has no colon: {name!r}", field="name")
    if name != name.strip() or "/" in name:
        raise InvalidInput(f"an account's name has no slash and no space at its ends: {name!r}", field="name")
    return name


def check_password(password: str, limits: AccessLimits) -> str:
    size = len(password.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= limits.password_bytes:
        raise InvalidInput(f"a password has 1 to {limits.password_bytes} bytes, this one has {size}", field="password")
    return password


def check_label(label: str, limits: AccessLimits) -> str:
    _check_text(label, "label", 0, limits.label_bytes)
    return label


def check_roles(roles: Sequence[str]) -> tuple[str, ...]:
    for role in roles:
        if role not in ROLES:
            raise InvalidInput(f"there is no role {role!r}; the roles are {', '.join(ROLES)}", field="roles")
    return tuple(role for role in ROLES if role in roles)


def roles_of_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """The roles that these tags of RabbitMQ's mean."""
    if "administrator" in tags:
        return (ADMIN,)
    return (MONITOR, USER) if "monitoring" in tags else (USER,)


def check_tags(tags: Sequence[str], limits: AccessLimits) -> tuple[str, ...]:
    if len(tags) > MAX_TAGS:
        raise LimitExceeded(f"{len(tags)} tags, an account may have {MAX_TAGS}", field="tags")
    for tag in tags:
        _check_text(tag, "a tag", 1, limits.label_bytes)
    return tuple(dict.fromkeys(tags))


def check_vhost_permission(permission: VhostPermission, limits: AccessLimits) -> VhostPermission:
    _check_text(permission.vhost, "vhost", 1, limits.pattern_bytes)
    for need in ("configure", "write", "read"):
        compile_regex(getattr(permission, need), field=need)
    return permission


def check_topic_permission(permission: TopicPermission, limits: AccessLimits) -> TopicPermission:
    _check_text(permission.vhost, "vhost", 1, limits.pattern_bytes)
    _check_text(permission.exchange, "exchange", 0, limits.pattern_bytes)
    for need in ("write", "read"):
        compile_regex(getattr(permission, need), field=need)
    return permission


def check_permissions(permissions: Sequence[Permission], limits: AccessLimits) -> tuple[Permission, ...]:
    if len(permissions) > limits.permissions_per_account:
        raise LimitExceeded(
            f"{len(permissions)} permissions, an account may have {limits.permissions_per_account}: "
            "say more with patterns",
            field="permissions",
        )
    for at, permission in enumerate(permissions):
        _check_text(permission.queue, f"permissions[{at}].queue", 1, limits.pattern_bytes)
        _check_text(permission.vhost, f"permissions[{at}].vhost", 1, limits.pattern_bytes)
    return tuple(permissions)


def _check_text(text: str, field: str, lowest: int, highest: int) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    if not lowest <= size <= highest:
        raise InvalidInput(f"{field} has {lowest} to {highest} bytes, this one has {size}", field=field)
    if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) <= 0xDFFF for c in text):
        raise InvalidInput(f"{field} has no control characters: {text!r}", field=field)
