"""Virtual hosts over HTTP: which there are, making one, deleting one with all that is in it."""

from __future__ import annotations

from laneway.access import OPERATOR, Access
from laneway.broker.interface import Broker, CreateVhost, DeleteVhost
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.answers import VhostAnswer, VhostsAnswer, encode
from laneway.frontends.rest.routing import ApiRoute, Reply


class VirtualHosts:
    def __init__(self, broker: Broker, access: Access) -> None:
        self._broker = broker
        self._access = access

    @ApiRoute("GET", "/vhosts", answers={200: VhostsAnswer})
    async def list_vhosts(self, call: Call) -> Reply:
        """The virtual hosts that the account has permissions in."""
        may_enter = self._access.may_enter
        seen = [name for name in self._broker.topology.vhosts() if may_enter(call.account, name)]
        return Reply(200, encode(VhostsAnswer(vhosts=[self._answer(name) for name in seen])))

    @ApiRoute("PUT", "/vhosts/{vhost}", answers={200: VhostAnswer, 201: VhostAnswer}, refusals=(429, 507))
    async def put_vhost(self, call: Call) -> Reply:
        """Create a virtual host; one that exists stays as it is."""
        self._access.check_role(call.account, OPERATOR)
        name: str = call.head.plan.vhost
        is_new = await self._broker.ask(CreateVhost(name))
        return Reply(201 if is_new else 200, encode(self._answer(name)))

    @ApiRoute("GET", "/vhosts/{vhost}", answers={200: VhostAnswer}, refusals=(404,))
    async def get_vhost(self, call: Call) -> Reply:
        """Whether there is this virtual host, and how many queues it has."""
        name: str = call.head.plan.vhost
        self._access.check_may_enter(call.account, name)
        self._broker.topology.check_vhost(name)
        return Reply(200, encode(self._answer(name)))

    @ApiRoute("DELETE", "/vhosts/{vhost}", answers={204: None}, refusals=(404, 409))
    async def delete_vhost(self, call: Call) -> Reply:
        """Delete a virtual host with all that is in it."""
        self._access.check_role(call.account, OPERATOR)
        await self._broker.ask(DeleteVhost(call.head.plan.vhost))
        return Reply(204)

    def _answer(self, name: str) -> VhostAnswer:
        return VhostAnswer(vhost=name, queue_count=self._broker.topology.queue_count(name))
