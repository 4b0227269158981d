"""Accounts, their keys, and the question who one is."""

from __future__ import annotations

from laneway.access import Access
from laneway.errors import AccountNotFound
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.admin import read_body
from laneway.frontends.rest.answers import AccountsAnswer, KeysAnswer, NewKeyAnswer, encode
from laneway.frontends.rest.routing import Reply
from laneway.frontends.rest.wire import AccountRequest, KeyRequest, decoder
from laneway.frontends.rest.writing import Writer


class Accounts:
    def __init__(self, access: Access, writer: Writer) -> None:
        self._access = access
        self._writer = writer
        self._decode_account = decoder(AccountRequest)
        self._decode_key = decoder(KeyRequest)

    async def whoami(self, call: Call) -> Reply:
        return Reply(200, encode(self._writer.account(call.account)))

    async def list_accounts(self, call: Call) -> Reply:
        self._access.check_admin(call.account)
        accounts = [self._writer.account(account) for account in self._access.accounts()]
        return Reply(200, encode(AccountsAnswer(accounts=accounts)))

    async def get_account(self, call: Call) -> Reply:
        name: str = call.head.plan.item
        if call.account.name != name:
            self._access.check_admin(call.account)
        return Reply(200, encode(self._writer.account(self._access.account(name))))

    async def put_account(self, call: Call) -> Reply:
        """Create or change; what is left out stays as it is. Everybody may change their own password."""
        name: str = call.head.plan.item
        body: AccountRequest = read_body(call, self._decode_account, AccountRequest())
        only_password = body.password is not None and body.roles is None and body.permissions is None
        self._access.check_account_change(call.account, name, only_password=only_password)
        try:
            self._access.account(name)
            is_new = False
        except AccountNotFound:
            is_new = True
        account = await self._access.put_account(
            name, password=body.password, roles=body.roles, permissions=body.permissions
        )
        return Reply(201 if is_new else 200, encode(self._writer.account(account)))

    async def delete_account(self, call: Call) -> Reply:
        self._access.check_admin(call.account)
        await self._access.delete_account(call.head.plan.item)
        return Reply(204)

    # Keys: an admin manages everybody's, others their own.

    def _check_keys(self, call: Call) -> str:
        name: str = call.head.plan.item
        if call.account.name != name:
            self._access.check_admin(call.account)
        return name

    async def list_keys(self, call: Call) -> Reply:
        name = self._check_keys(call)
        return Reply(200, encode(KeysAnswer(keys=[self._writer.key(info) for info in self._access.keys(name)])))

    async def create_key(self, call: Call) -> Reply:
        name = self._check_keys(call)
        body: KeyRequest = read_body(call, self._decode_key, KeyRequest())
        key_id, key = await self._access.create_key(name, body.label, body.kind)
        return Reply(201, encode(NewKeyAnswer(key_id=key_id, key=key, account=name, label=body.label, kind=body.kind)))

    async def delete_key(self, call: Call) -> Reply:
        name = self._check_keys(call)
        await self._access.delete_key(name, call.head.plan.part)
        return Reply(204)
