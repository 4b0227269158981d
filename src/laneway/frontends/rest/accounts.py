"""Accounts, their keys, and the question who one is."""

from __future__ import annotations

from laneway.access import Access
from laneway.errors import AccountNotFound
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest import answers as a
from laneway.frontends.rest.routing import ApiRoute, Reply
from laneway.frontends.rest.wire import AccountRequest, KeyRequest, read_body
from laneway.frontends.rest.writing import AnswerWriter


class Accounts:
    def __init__(self, access: Access, writer: AnswerWriter) -> None:
        self._access = access
        self._writer = writer

    @ApiRoute("GET", "/whoami", answers={200: a.AccountAnswer})
    async def whoami(self, call: Call) -> Reply:
        """The account this request acts as."""
        return Reply(200, a.encode(self._writer.account(call.account)))

    @ApiRoute("GET", "/accounts", answers={200: a.AccountsAnswer})
    async def list_accounts(self, call: Call) -> Reply:
        """All accounts."""
        self._access.check_admin(call.account)
        accounts = [self._writer.account(account) for account in self._access.accounts()]
        return Reply(200, a.encode(a.AccountsAnswer(accounts=accounts)))

    @ApiRoute(
        "PUT",
        "/accounts/{name}",
        request=AccountRequest,
        body_optional=True,
        answers={200: a.AccountAnswer, 201: a.AccountAnswer},
        refusals=(409, 429, 507),
    )
    async def put_account(self, call: Call) -> Reply:
        """Create an account or change it; what is left out stays as it is.

        Everybody may change their own password."""
        name: str = call.head.plan.names["name"]
        body = read_body(call.body, AccountRequest)
        only_password = body.password is not None and body.roles is None and body.permissions is None
        self._access.check_account_change(call.account, name, only_password=only_password)
        try:
            self._access.account(name)
            is_new = False
        except AccountNotFound:
            is_new = True
        account = await self._access.put_account(
            name, password=body.password, roles=body.roles, permissions=body.permissions, by=call.who
        )
        return Reply(201 if is_new else 200, a.encode(self._writer.account(account)))

    @ApiRoute("GET", "/accounts/{name}", answers={200: a.AccountAnswer}, refusals=(404,))
    async def get_account(self, call: Call) -> Reply:
        """One account."""
        name = self._check_own(call)
        return Reply(200, a.encode(self._writer.account(self._access.account(name))))

    @ApiRoute("DELETE", "/accounts/{name}", answers={204: None}, refusals=(404, 409))
    async def delete_account(self, call: Call) -> Reply:
        """Delete an account with its keys."""
        self._access.check_admin(call.account)
        await self._access.delete_account(call.head.plan.names["name"], by=call.who)
        return Reply(204)

    def _check_own(self, call: Call) -> str:
        """The account of the path: one's own, or anybody's for an admin."""
        name: str = call.head.plan.names["name"]
        if call.account.name != name:
            self._access.check_admin(call.account)
        return name

    @ApiRoute("GET", "/accounts/{name}/keys", answers={200: a.KeysAnswer}, refusals=(404,))
    async def list_keys(self, call: Call) -> Reply:
        """The API keys of an account, without the keys themselves."""
        name = self._check_own(call)
        return Reply(200, a.encode(a.KeysAnswer(keys=[self._writer.key(info) for info in self._access.keys(name)])))

    @ApiRoute(
        "POST",
        "/accounts/{name}/keys",
        request=KeyRequest,
        body_optional=True,
        answers={201: a.NewKeyAnswer},
        refusals=(404, 429, 507),
    )
    async def create_key(self, call: Call) -> Reply:
        """A new API key, shown this once."""
        name = self._check_own(call)
        body = read_body(call.body, KeyRequest)
        key_id, key = await self._access.create_key(name, body.label, body.kind, by=call.who)
        answer = a.NewKeyAnswer(key_id=key_id, key=key, account=name, label=body.label, kind=body.kind)
        return Reply(201, a.encode(answer))

    @ApiRoute("DELETE", "/accounts/{name}/keys/{key_id}", answers={204: None}, refusals=(404, 409))
    async def delete_key(self, call: Call) -> Reply:
        """Delete an API key: it is refused from then on."""
        name = self._check_own(call)
        await self._access.delete_key(name, call.head.plan.names["key_id"], by=call.who)
        return Reply(204)
