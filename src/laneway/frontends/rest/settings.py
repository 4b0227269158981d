"""The settings of the node over HTTP: reading them again while it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from laneway.access import Access
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.answers import ReloadAnswer, encode
from laneway.frontends.rest.routing import ApiRoute, Reply

Reload = Callable[[], Awaitable[ReloadAnswer]]


async def nothing_to_reload() -> ReloadAnswer:
    """Of a server that was not started with settings."""
    return ReloadAnswer(changed=[], read_again=[], needs_restart=[])


class SettingsApi:
    def __init__(self, access: Access, reload: Reload) -> None:
        self._access = access
        self._reload = reload

    @ApiRoute("POST", "/config/reload", answers={200: ReloadAnswer}, refusals=(409,))
    async def reload(self, call: Call) -> Reply:
        """Read the settings again, and the certificates they name, and put in force what can change without a restart.

        All or nothing: if one of them is wrong, those in force stay."""
        self._access.check_admin(call.account)
        return Reply(200, encode(await self._reload()))
