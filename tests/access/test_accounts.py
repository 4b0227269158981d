"""What accounts may do, and how they are changed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from laneway.access import Access, AccessLimits, Permission
from laneway.errors import (
    AccountNotFound,
    Conflict,
    Forbidden,
    InvalidInput,
    LimitExceeded,
    StartError,
)

from .conftest import DictStore, login, reopened, run

# --- permissions and roles


def test_permissions_are_by_pattern_of_virtual_host_and_queue(access: Access) -> None:
    ann = run(
        access.put_account(
            "ann",
            permissions=[
                Permission(queue="orders.*", vhost="/", read=True, write=True),
                Permission(queue="*", vhost="test-?", configure=True),
            ],
        )
    )
    assert access.allowed(ann, "/", "orders.eu", "read")
    assert access.allowed(ann, "/", "orders.eu", "write")
    assert access.allowed(ann, "/", "orders.eu", "stats")
    assert not access.allowed(ann, "/", "orders.eu", "configure")
    assert not access.allowed(ann, "/", "orders", "read")
    assert not access.allowed(ann, "/other", "orders.eu", "read")
    assert access.allowed(ann, "test-1", "anything", "configure")
    assert not access.allowed(ann, "test-1", "anything", "read")
    assert not access.allowed(ann, "test-1", "anything", "stats")
    assert not access.allowed(ann, "test-12", "anything", "configure")


def test_a_refusal_names_account_need_queue_and_virtual_host(access: Access) -> None:
    ann = run(access.put_account("ann"))
    with pytest.raises(Forbidden, match=r"'ann' has no write permission on queue 'orders' of virtual host '/'"):
        access.check(ann, "/", "orders", "write")


@pytest.mark.parametrize(
    ("role", "queue_needs", "is_admin"),
    [
        ("admin", {"read", "write", "configure", "stats"}, True),
        ("operator", {"read", "write", "configure", "stats"}, False),
        ("monitor", {"stats"}, False),
        ("user", set(), False),
    ],
)
def test_what_each_role_may_do(access: Access, role: str, queue_needs: set[str], is_admin: bool) -> None:
    account = run(access.put_account("ann", roles=[role]))
    needs = ("read", "write", "configure", "stats")
    assert {need for need in needs if access.allowed(account, "/", "q", need)} == queue_needs
    if is_admin:
        access.check_admin(account)
    else:
        with pytest.raises(Forbidden, match="needs the role admin"):
            access.check_admin(account)


def test_check_role_takes_any_of_the_roles_and_always_an_admin(access: Access) -> None:
    operator = run(access.put_account("op", roles=["operator"]))
    guest = access.account("guest")
    access.check_role(operator, "operator", "monitor")
    access.check_role(guest, "operator")
    with pytest.raises(Forbidden, match="monitor or admin"):
        access.check_role(operator, "monitor")


def test_a_change_of_permissions_counts_at_once_for_an_open_session(access: Access) -> None:
    ann = run(access.put_account("ann", permissions=[Permission(read=True)]))
    access.check(ann, "/", "q", "read")
    run(access.put_account("ann", permissions=[Permission(write=True)]))
    with pytest.raises(Forbidden):
        access.check(ann, "/", "q", "read")
    access.check(ann, "/", "q", "write")
    run(access.delete_account("ann"))
    with pytest.raises(Forbidden):
        access.check(ann, "/", "q", "write")


def test_an_old_session_gains_nothing_when_its_name_is_taken_again(access: Access) -> None:
    old = run(access.put_account("ann"))
    run(access.delete_account("ann"))
    run(access.put_account("ann", roles=["admin"]))
    assert not access.allowed(old, "/", "q", "read")
    with pytest.raises(Forbidden):
        access.check_admin(old)
    with pytest.raises(Forbidden):
        access.check_account_change(old, "ann", only_password=True)


def test_decisions_stay_right_when_more_are_remembered_than_allowed(store: DictStore) -> None:
    access = reopened(store, AccessLimits(remembered_decisions_per_account=10))
    ann = run(access.put_account("ann", permissions=[Permission(queue="q*5", read=True)]))
    for _ in range(2):
        for i in range(50):
            assert access.allowed(ann, "/", f"q{i}", "read") is (i % 10 == 5)
    assert len(access._accounts["ann"].decisions) <= 10


def test_everybody_may_change_their_own_password_and_no_more(access: Access) -> None:
    ann = run(access.put_account("ann"))
    run(access.put_account("bob"))
    access.check_account_change(ann, "ann", only_password=True)
    access.check_account_change(access.account("guest"), "ann", only_password=False)
    for name, only_password in (("ann", False), ("bob", True)):
        with pytest.raises(Forbidden):
            access.check_account_change(ann, name, only_password=only_password)


# --- changing accounts


def test_what_is_not_given_stays_as_it_is(access: Access, store: DictStore) -> None:
    run(access.put_account("ann", password="pw", roles=["monitor"], permissions=[Permission(read=True)]))
    run(access.put_account("ann", roles=["monitor", "user"]))
    run(access.put_account("ann", permissions=[]))
    again = reopened(store)
    ann = login(again, "ann", "pw")
    assert (ann.roles, ann.permissions) == (("monitor", "user"), ())
    assert again.has_password("ann")


def test_the_last_admin_can_be_neither_deleted_nor_demoted(access: Access) -> None:
    with pytest.raises(Conflict, match="last admin"):
        run(access.delete_account("guest"))
    with pytest.raises(Conflict, match="last admin"):
        run(access.put_account("guest", roles=["user"]))
    run(access.put_account("ann", password="pw", roles=["admin"]))
    run(access.delete_account("guest"))
    with pytest.raises(Conflict, match="last admin"):
        run(access.delete_account("ann"))
    run(access.put_account("ann", password="other"))  # staying an admin, it may change


def test_accounts_that_are_no_admins_do_not_stand_in_for_the_last_one(access: Access) -> None:
    for name, role in (("bob", "operator"), ("cat", "user")):
        run(access.put_account(name, password="pw", roles=[role]))
    with pytest.raises(Conflict, match="last admin"):
        run(access.delete_account("guest"))
    run(access.delete_account("bob"))  # while guest stays, others may go


def test_an_admin_that_cannot_log_in_does_not_count(access: Access) -> None:
    run(access.put_account("ann", roles=["admin"]))
    with pytest.raises(Conflict, match="last admin"):
        run(access.delete_account("guest"))
    key_id, _ = run(access.create_key("ann"))
    run(access.delete_account("guest"))
    with pytest.raises(Conflict, match="last admin"):
        run(access.delete_key("ann", key_id))
    run(access.put_account("ann", password="pw"))
    run(access.delete_key("ann", key_id))


def test_an_account_that_is_no_admin_can_be_deleted_with_its_keys(access: Access, store: DictStore) -> None:
    run(access.put_account("ann"))
    run(access.create_key("ann"))
    run(access.delete_account("ann"))
    assert store.collections == {"accounts": {}, "keys": {}}
    with pytest.raises(AccountNotFound):
        run(access.delete_account("ann"))


def test_two_admins_deleting_each_other_at_once_leave_one(access: Access) -> None:
    async def both() -> list[object]:
        for name in ("ann", "bob"):
            await access.put_account(name, password="pw", roles=["admin"])
        await access.delete_account("guest")
        tries = (access.delete_account("ann"), access.delete_account("bob"))
        return await asyncio.gather(*tries, return_exceptions=True)

    assert [type(answer) for answer in run(both())] == [type(None), Conflict]
    assert [account.name for account in access.accounts()] == ["bob"]


def test_a_change_is_finished_when_whoever_asked_goes_away(access: Access, store: DictStore) -> None:
    async def asked_and_left() -> None:
        store.hold = asyncio.Event()
        asking = asyncio.ensure_future(access.put_account("ann", roles=["monitor"]))
        for _ in range(5):
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        store.hold.set()
        store.hold = None
        await access.put_account("bob")  # changes are made one after the other, so ann's is finished by now

    run(asked_and_left())
    assert access.account("ann").roles == ("monitor",)
    assert set(store.collections["accounts"]) == {"ann", "bob"}


@pytest.mark.parametrize(
    ("name", "arguments", "field"),
    [
        ("", {}, "name"),
        ("a" * 256, {}, "name"),
        ("a:b", {}, "name"),
        ("a/b", {}, "name"),
        (" ann", {}, "name"),
        ("a\nb", {}, "name"),
        ("ann", {"password": ""}, "password"),
        ("ann", {"password": "x" * 1025}, "password"),
        ("ann", {"roles": ["root"]}, "roles"),
        ("ann", {"permissions": [Permission(), Permission(queue="")]}, "permissions[1].queue"),
        ("ann", {"permissions": [Permission(vhost="v" * 256)]}, "permissions[0].vhost"),
    ],
)
def test_bad_input_names_its_field(access: Access, name: str, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        run(access.put_account(name, **arguments))
    assert refused.value.field == field
    assert [account.name for account in access.accounts()] == ["guest"]


def test_the_limits_are_kept_and_named(store: DictStore) -> None:
    access = reopened(store, AccessLimits(accounts=2, keys_per_account=1, permissions_per_account=1))
    run(access.put_account("ann"))
    run(access.create_key("ann"))
    too_much = [
        (access.put_account("bob"), "name"),
        (access.create_key("ann"), "name"),
        (access.put_account("ann", permissions=[Permission(), Permission()]), "permissions"),
    ]
    for work, field in too_much:
        with pytest.raises(LimitExceeded) as refused:
            run(work)
        assert refused.value.field == field
    run(access.put_account("ann", roles=["monitor"]))  # a change needs no room


def test_keys_are_asked_of_known_accounts_alone(access: Access) -> None:
    for work in (access.create_key("nobody"), access.delete_key("nobody", "k1")):
        with pytest.raises(AccountNotFound):
            run(work)
    with pytest.raises(AccountNotFound):
        access.keys("nobody")
    with pytest.raises(AccountNotFound):
        access.account("nobody")


@pytest.mark.parametrize("collection", ["accounts", "keys"])
def test_an_unreadable_document_stops_the_start_and_is_named(store: DictStore, collection: str) -> None:
    store.collections[collection] = {"ann": b"{broken"}
    with pytest.raises(StartError, match="'ann' cannot be read"):
        reopened(store)
