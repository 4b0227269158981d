"""Virtual hosts over HTTP: which there are, making one, deleting one with all that is in it."""

from __future__ import annotations

from laneway.access import OPERATOR, Access
from laneway.broker.broker import Broker
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.answers import VhostAnswer, VhostsAnswer, encode
from laneway.frontends.rest.routing import Reply, Route


class VirtualHosts:
    def __init__(self, broker: Broker, access: Access) -> None:
        self._broker = broker
        self._access = access

    async def list_vhosts(self, call: Call) -> Reply:
        """Those in which the caller may do anything at all."""
        may_enter = self._access.may_enter
        seen = [name for name in self._broker.vhosts.list() if may_enter(call.account, name)]
        return Reply(200, encode(VhostsAnswer(vhosts=[self._answer(name) for name in seen])))

    async def get_vhost(self, call: Call) -> Reply:
        name: str = call.head.plan.vhost
        self._access.check_may_enter(call.account, name)
        self._broker.vhosts.check(name)
        return Reply(200, encode(self._answer(name)))

    async def put_vhost(self, call: Call) -> Reply:
        self._access.check_role(call.account, OPERATOR)
        name: str = call.head.plan.vhost
        is_new = self._broker.vhosts.create(name)
        await self._broker.durable()
        return Reply(201 if is_new else 200, encode(self._answer(name)))

    async def delete_vhost(self, call: Call) -> Reply:
        self._access.check_role(call.account, OPERATOR)
        self._broker.vhosts.delete(call.head.plan.vhost)
        await self._broker.durable()
        return Reply(204)

    def _answer(self, name: str) -> VhostAnswer:
        return VhostAnswer(vhost=name, queue_count=self._broker.queues.count(name))


def vhost_routes(vhosts: VirtualHosts) -> list[Route]:
    return [
        Route(
            method="GET",
            pattern="/vhosts",
            name="list_vhosts",
            summary="The virtual hosts that the account has permissions in",
            slow=vhosts.list_vhosts,
            answers={200: VhostsAnswer},
        ),
        Route(
            method="PUT",
            pattern="/vhosts/{vhost}",
            name="put_vhost",
            summary="Create a virtual host; one that exists stays as it is",
            slow=vhosts.put_vhost,
            answers={200: VhostAnswer, 201: VhostAnswer},
            refusals=(429, 507),
        ),
        Route(
            method="GET",
            pattern="/vhosts/{vhost}",
            name="get_vhost",
            summary="Whether there is this virtual host, and how many queues it has",
            slow=vhosts.get_vhost,
            answers={200: VhostAnswer},
            refusals=(404,),
        ),
        Route(
            method="DELETE",
            pattern="/vhosts/{vhost}",
            name="delete_vhost",
            summary="Delete a virtual host with all that is in it",
            slow=vhosts.delete_vhost,
            answers={204: None},
            refusals=(404, 409),
        ),
    ]
