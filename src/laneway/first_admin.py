"""The first administrator, as the environment of a container names it. No setting: it counts on a folder without
accounts alone, and nothing that shows settings or logs them ever sees the password."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from laneway.access import ADMIN, GUEST, Access
from laneway.errors import ConfigInvalid, InvalidInput

USER, PASSWORD = "LANEWAY_ADMIN_USER", "LANEWAY_ADMIN_PASSWORD"
_FILE = "_FILE"


class FirstAdmin:
    __slots__ = ("_password", "name")

    def __init__(self, name: str, password: str) -> None:
        self.name = name
        self._password = password

    async def create(self, access: Access) -> bool:
        """Whether it was created: it is, and guest is deleted, as long as guest is the only account."""
        if not access.guest_only:
            return False
        try:
            await access.put_account(self.name, password=self._password, roles=(ADMIN,))
        except InvalidInput as refusal:
            variable = PASSWORD if refusal.field == "password" else USER
            raise ConfigInvalid(f"{variable}: {refusal.message}", field=variable) from None
        await access.delete_account(GUEST)
        return True


def first_admin(env: Mapping[str, str]) -> FirstAdmin | None:
    """Whom the environment names, each by a variable or by a file that a variable names."""
    name, password = _value(env, USER), _value(env, PASSWORD)
    if name is None and password is None:
        return None
    for variable, value in ((USER, name), (PASSWORD, password)):
        if value is None:
            raise ConfigInvalid(f"{USER} and {PASSWORD} go together: {variable} (or {variable}{_FILE}) is missing")
    assert name is not None and password is not None
    if name == GUEST:
        raise ConfigInvalid(f"{USER} is another name than guest, which is good from this machine only", field=USER)
    return FirstAdmin(name, password)


def _value(env: Mapping[str, str], variable: str) -> str | None:
    """Empty ones count as not set, as everywhere. The line end that editors leave in a file is no part of it."""
    value, file = env.get(variable), env.get(variable + _FILE)
    if value and file:
        raise ConfigInvalid(f"{variable} and {variable}{_FILE} say the same thing twice: give one", field=variable)
    if not file:
        return value or None
    try:
        found = Path(file).read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as trouble:
        why = trouble.strerror if isinstance(trouble, OSError) else "it is not UTF-8"
        raise ConfigInvalid(f"{variable}{_FILE} names {file}, which cannot be read: {why}", field=variable) from None
    if not found:
        raise ConfigInvalid(f"{variable}{_FILE} names {file}, which is empty", field=variable)
    return found
