"""Several processes with the same accounts: each keeps its own memory of the documents, and none may be behind."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any

import pytest

from laneway.access import Access, Permission
from laneway.access.access import ACCOUNTS, KEYS
from laneway.errors import Conflict, NotFound, Unauthenticated

from .conftest import DictStore, login, reopened, run


@pytest.fixture
def other(store: DictStore, access: Access) -> Access:
    """Of another process, on the same documents."""
    counted = itertools.count(1_000_000)  # its random bytes are none of the first one's
    return Access(store, now_ms=lambda: 9_000, random_bytes=lambda size: next(counted).to_bytes(size, "big"))


def both(one: Coroutine[Any, Any, object], two: Coroutine[Any, Any, object]) -> list[object]:
    async def asked() -> list[object]:
        return await asyncio.gather(one, two, return_exceptions=True)

    return run(asked())


def test_a_new_account_and_its_key_are_known_everywhere(access: Access, other: Access) -> None:
    run(access.put_account("ann", password="pw", permissions=[Permission(read=True)]))
    _, key = run(access.create_key("ann"))
    access_key, secret = run(access.create_key("ann", kind="aws"))
    ann = login(other, "ann", "pw")
    assert other.allowed(ann, "/", "q", "read") and other.authenticate_key(key) == ann
    assert other.signing_key(access_key) == (ann, secret)
    assert not other.guest_only and other.keys("ann") == access.keys("ann")


def test_what_is_taken_away_is_taken_away_everywhere_and_told(access: Access, other: Access) -> None:
    ann = run(access.put_account("ann", password="pw", permissions=[Permission(read=True)]))
    key_id, key = run(access.create_key("ann"))
    by_key, by_password = other.login(ann, "key", key), other.login(ann, "password")
    told: list[str] = []
    other.on_change(told.append)
    version = other.version

    run(access.put_account("ann", permissions=[]))
    assert not other.allowed(ann, "/", "q", "read") and told == ["ann"] and other.version > version

    run(access.delete_key("ann", key_id))
    assert other.lost(by_key) and not other.lost(by_password) and told == ["ann"] * 2
    with pytest.raises(Unauthenticated):
        other.authenticate_key(key)

    run(access.delete_account("ann"))
    assert other.lost(by_password) == "user 'ann' was deleted" and told == ["ann"] * 3
    assert other.password_cached("ann", "pw", from_loopback=True) is None


def test_a_deleted_guest_is_gone_everywhere(access: Access, other: Access) -> None:
    run(access.put_account("ann", password="pw", roles=["admin"]))
    run(access.delete_account("guest"))
    assert [account.name for account in other.accounts()] == ["ann"]
    with pytest.raises(Unauthenticated):
        other.anonymous(from_loopback=True)


def test_a_password_stays_verified_when_another_process_changes_the_permissions(access: Access, other: Access) -> None:
    run(access.put_account("ann", password="pw"))
    login(other, "ann", "pw")
    run(access.put_account("ann", permissions=[Permission(read=True)]))
    assert other.password_cached("ann", "pw", from_loopback=True) is not None
    run(access.put_account("ann", password="new"))
    assert other.password_cached("ann", "pw", from_loopback=True) is None


def test_changes_of_two_processes_at_once_are_both_made(access: Access, other: Access, store: DictStore) -> None:
    run(access.put_account("ann", password="pw"))
    both(access.put_account("ann", roles=["monitor"]), other.put_account("ann", permissions=[Permission(read=True)]))
    for one in (access, other, reopened(store)):
        ann = one.account("ann")
        assert (ann.roles, ann.permissions) == (("monitor",), (Permission(read=True),))


@pytest.mark.parametrize("by_key", [False, True])
def test_two_processes_that_delete_an_admin_each_leave_one(access: Access, other: Access, by_key: bool) -> None:
    for name in ("ann", "bob"):
        run(access.put_account(name, password=None if by_key else "pw", roles=["admin"]))
        run(access.create_key(name))
    run(access.delete_account("guest"))
    answers = both(access.delete_account("ann"), other.delete_account("bob"))
    assert [type(answer) for answer in answers] == [type(None), Conflict]
    assert [account.name for account in other.accounts()] == ["bob"] and len(other.keys("bob")) == 1


def test_a_key_is_deleted_once_by_two_processes(access: Access, other: Access) -> None:
    run(access.put_account("ann"))
    key_id, _ = run(access.create_key("ann"))
    answers = both(access.delete_key("ann", key_id), other.delete_key("ann", key_id))
    assert [type(answer) for answer in answers] == [type(None), NotFound]


def test_a_key_made_while_its_account_goes_opens_no_account_of_that_name(
    access: Access, other: Access, store: DictStore
) -> None:
    run(access.put_account("ann"))
    answers = both(access.delete_account("ann"), other.create_key("ann"))
    run(access.put_account("ann"))
    made = answers[1]
    assert isinstance(made, NotFound) or (isinstance(made, tuple) and not other.knows_key(made[1]))
    assert access.keys("ann") == other.keys("ann") == []


def test_a_key_that_outlived_its_account_is_no_key_of_the_next_one(access: Access, store: DictStore) -> None:
    run(access.put_account("ann"))
    key_id, key = run(access.create_key("ann"))
    kept = store.collections[KEYS][key_id]
    run(access.delete_account("ann"))
    store.collections[KEYS][key_id] = kept  # as if it had been made just before
    again = reopened(store)
    assert not again.knows_key(key)
    run(again.put_account("ann"))
    assert not again.knows_key(key) and store.collections[KEYS] == {} and set(store.collections[ACCOUNTS]) == {"ann"}
