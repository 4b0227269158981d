"""Who may come in and what they may do, over a plain dictionary of documents."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from laneway.access import Access, AccessLimits, Account, Permission, passwords
from laneway.access import access as access_module
from laneway.errors import (
    AccountNotFound,
    Conflict,
    Forbidden,
    InvalidInput,
    LimitExceeded,
    NotFound,
    StartError,
    Unauthenticated,
    Unavailable,
)

T = TypeVar("T")


class DictStore:
    """Documents in dictionaries. `hold`, when set, is waited for before a change is taken."""

    def __init__(self) -> None:
        self.collections: dict[str, dict[str, bytes]] = {}
        self.hold: asyncio.Event | None = None

    def documents(self, collection: str) -> dict[str, bytes]:
        return dict(self.collections.get(collection, {}))

    async def put_document(self, collection: str, key: str, document: bytes) -> None:
        await self._held()
        self.collections.setdefault(collection, {})[key] = document

    async def remove_document(self, collection: str, key: str) -> None:
        await self._held()
        del self.collections[collection][key]

    async def _held(self) -> None:
        await asyncio.sleep(0)
        if self.hold is not None:
            await self.hold.wait()


class CountedBytes:
    """A randomness source that never repeats and never surprises."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, size: int) -> bytes:
        self.calls += 1
        return self.calls.to_bytes(size, "big")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@pytest.fixture
def store() -> DictStore:
    return DictStore()


@pytest.fixture
def access(store: DictStore) -> Access:
    return reopened(store)


def reopened(store: DictStore, limits: AccessLimits | None = None) -> Access:
    clock = iter(range(1_000, 1_000_000))
    return Access(store, now_ms=lambda: next(clock), random_bytes=CountedBytes(), limits=limits)


@pytest.fixture
def scrypt_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The hashes that passwords were compared with, each at the price of one scrypt."""
    calls: list[str] = []

    def counted(password: str, stored: str) -> bool:
        calls.append(stored)
        return passwords.password_matches(password, stored)

    monkeypatch.setattr(access_module, "password_matches", counted)
    yield calls


def login(access: Access, name: str, password: str, *, from_loopback: bool = True) -> Account:
    return run(access.authenticate_password(name, password, from_loopback=from_loopback))


# --- guest and anonymous callers


def test_guest_is_an_admin_out_of_the_box(access: Access) -> None:
    assert login(access, "guest", "guest").roles == ("admin",)
    assert access.guest_only
    assert [account.name for account in access.accounts()] == ["guest"]


def test_guest_needs_no_document(access: Access, store: DictStore) -> None:
    login(access, "guest", "guest")
    assert store.collections == {}


def test_guest_is_refused_beyond_loopback(access: Access) -> None:
    login(access, "guest", "guest")
    with pytest.raises(Unauthenticated, match="from this machine only"):
        login(access, "guest", "guest", from_loopback=False)
    assert access.password_cached("guest", "guest", from_loopback=False) is None
    assert access.password_cached("guest", "guest", from_loopback=True) is not None


def test_guest_with_another_password_is_still_refused_beyond_loopback(access: Access) -> None:
    run(access.put_account("guest", password="long and secret"))
    assert login(access, "guest", "long and secret").name == "guest"
    with pytest.raises(Unauthenticated):
        login(access, "guest", "long and secret", from_loopback=False)


def test_anonymous_is_guest_from_loopback_alone(access: Access) -> None:
    assert access.anonymous(from_loopback=True).name == "guest"
    with pytest.raises(Unauthenticated):
        access.anonymous(from_loopback=False)


def test_anonymous_ends_with_the_first_account(access: Access) -> None:
    run(access.put_account("ann", password="pw"))
    assert not access.guest_only
    with pytest.raises(Unauthenticated, match="first account"):
        access.anonymous(from_loopback=True)
    assert login(access, "guest", "guest").name == "guest"


def test_anonymous_ends_when_guest_gets_another_password(access: Access) -> None:
    run(access.put_account("guest", password="other"))
    with pytest.raises(Unauthenticated):
        access.anonymous(from_loopback=True)
    with pytest.raises(Unauthenticated):
        login(access, "guest", "guest")


def test_a_deleted_guest_stays_deleted_after_a_restart(access: Access, store: DictStore) -> None:
    run(access.put_account("ann", password="pw", roles=["admin"]))
    run(access.delete_account("guest"))
    for one in (access, reopened(store)):
        assert [account.name for account in one.accounts()] == ["ann"]
        with pytest.raises(Unauthenticated):
            login(one, "guest", "guest")


def test_a_deleted_guest_can_be_created_again(access: Access, store: DictStore) -> None:
    run(access.put_account("ann", password="pw", roles=["admin"]))
    run(access.delete_account("guest"))
    run(access.put_account("guest", password="new"))
    assert login(reopened(store), "guest", "new").roles == ("user",)


def test_guest_gets_no_api_key(access: Access) -> None:
    with pytest.raises(InvalidInput, match="guest has no API keys"):
        run(access.create_key("guest"))


# --- passwords


def test_a_password_survives_a_restart_and_is_stored_hashed(access: Access, store: DictStore) -> None:
    run(access.put_account("ann", password="hunter2"))
    assert b"hunter2" not in store.collections["accounts"]["ann"]
    assert login(reopened(store), "ann", "hunter2", from_loopback=False).name == "ann"


def test_a_wrong_password_is_refused(access: Access) -> None:
    run(access.put_account("ann", password="right"))
    login(access, "ann", "right")
    for wrong in ("wrong", "Right", "right ", "", "x" * 2000, "\ud800"):
        with pytest.raises(Unauthenticated, match="name or its password"):
            login(access, "ann", wrong)


def test_an_unknown_account_costs_and_says_the_same_as_a_wrong_password(
    access: Access, scrypt_calls: list[str]
) -> None:
    run(access.put_account("ann", password="right"))
    run(access.put_account("keyed"))
    messages = set()
    for name in ("ann", "nobody", "keyed"):
        with pytest.raises(Unauthenticated) as refused:
            login(access, name, "wrong")
        messages.add(refused.value.message)
    assert len(messages) == 1
    assert len(scrypt_calls) == 3
    assert {call.rsplit("$", 2)[0] for call in scrypt_calls} == {"scrypt$16384$8$1"}


def test_a_verified_password_is_not_hashed_again(access: Access, scrypt_calls: list[str]) -> None:
    run(access.put_account("ann", password="right"))
    assert access.password_cached("ann", "right", from_loopback=True) is None
    login(access, "ann", "right")
    login(access, "ann", "right")
    assert access.password_cached("ann", "right", from_loopback=False) == access.account("ann")
    assert access.password_cached("ann", "wrong", from_loopback=False) is None
    assert len(scrypt_calls) == 1


def test_many_logins_at_once_with_one_password_are_verified_once(access: Access, scrypt_calls: list[str]) -> None:
    async def all_at_once() -> list[Account]:
        return await asyncio.gather(
            *(access.authenticate_password("guest", "guest", from_loopback=True) for _ in range(50))
        )

    assert {account.name for account in run(all_at_once())} == {"guest"}
    assert len(scrypt_calls) <= AccessLimits().verifications_at_once


@pytest.mark.parametrize("change", ["password", "roles", "delete"])
def test_what_was_verified_is_forgotten_when_the_account_changes(access: Access, change: str) -> None:
    run(access.put_account("ann", password="right"))
    login(access, "ann", "right")
    if change == "password":
        run(access.put_account("ann", password="other"))
    elif change == "roles":
        run(access.put_account("ann", roles=["monitor"]))
    else:
        run(access.delete_account("ann"))
    assert access.password_cached("ann", "right", from_loopback=True) is None
    if change != "roles":
        with pytest.raises(Unauthenticated):
            login(access, "ann", "right")


def test_a_password_changed_while_the_old_one_is_verified_is_not_let_in(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(access.put_account("ann", password="old"))
    verifying, go_on = threading.Event(), threading.Event()

    def slow(password: str, stored: str) -> bool:
        verifying.set()
        assert go_on.wait(10)
        return passwords.password_matches(password, stored)

    monkeypatch.setattr(access_module, "password_matches", slow)

    async def race() -> None:
        logging_in = asyncio.ensure_future(access.authenticate_password("ann", "old", from_loopback=True))
        await asyncio.to_thread(verifying.wait, 10)
        await access.put_account("ann", password="new")
        go_on.set()
        with pytest.raises(Unauthenticated):
            await logging_in

    run(race())
    assert access.password_cached("ann", "old", from_loopback=True) is None


def test_a_flood_of_passwords_is_refused_before_it_piles_up(store: DictStore, scrypt_calls: list[str]) -> None:
    access = reopened(store, AccessLimits(verifications_at_once=1, verifications_waiting=3))

    async def flood() -> list[object]:
        tries = (access.authenticate_password(f"n{i}", "x", from_loopback=True) for i in range(10))
        return await asyncio.gather(*tries, return_exceptions=True)

    answers = run(flood())
    assert [type(answer) for answer in answers].count(Unavailable) == 7
    assert len(scrypt_calls) == 3
    with pytest.raises(Unauthenticated):
        login(access, "n0", "x")  # the flood is over: there is room again


def test_the_parameters_are_read_from_the_stored_hash() -> None:
    import base64
    import hashlib

    digest = hashlib.scrypt(b"pw", salt=b"salt", n=2, r=1, p=1, dklen=64)
    stored = f"scrypt$2$1$1${base64.b64encode(b'salt').decode()}${base64.b64encode(digest).decode()}"
    assert passwords.password_matches("pw", stored)
    assert not passwords.password_matches("pW", stored)


def test_two_accounts_with_one_password_have_different_hashes(access: Access, store: DictStore) -> None:
    import json

    for name in ("ann", "bob"):
        run(access.put_account(name, password="same"))
    hashes = {json.loads(document)["password"] for document in store.collections["accounts"].values()}
    assert len(hashes) == 2


# --- API keys


def test_a_key_works_and_survives_a_restart_while_only_its_hash_is_stored(access: Access, store: DictStore) -> None:
    run(access.put_account("ann", permissions=[Permission(read=True)]))
    key_id, key = run(access.create_key("ann", "laptop"))
    assert key.startswith("lw_") and len(key) == 3 + 43
    assert key.encode() not in b"".join(store.collections["keys"].values())
    for one in (access, reopened(store)):
        assert one.authenticate_key(key) == one.account("ann")
        assert [(info.key_id, info.label) for info in one.keys("ann")] == [(key_id, "laptop")]


@pytest.mark.parametrize("key", ["", "lw_", "lw_unknown", "unknown", "lw_\ud800"])
def test_an_unknown_key_is_refused(access: Access, key: str) -> None:
    with pytest.raises(Unauthenticated, match="API key"):
        access.authenticate_key(key)


def test_a_deleted_key_is_refused_and_the_others_go_on(access: Access, store: DictStore) -> None:
    run(access.put_account("ann"))
    first_id, first = run(access.create_key("ann"))
    _, second = run(access.create_key("ann"))
    run(access.delete_key("ann", first_id))
    for one in (access, reopened(store)):
        with pytest.raises(Unauthenticated):
            one.authenticate_key(first)
        assert one.authenticate_key(second).name == "ann"
    with pytest.raises(NotFound):
        run(access.delete_key("ann", first_id))


def test_a_key_is_deleted_under_its_own_account_alone(access: Access) -> None:
    for name in ("ann", "bob"):
        run(access.put_account(name))
    key_id, key = run(access.create_key("ann"))
    with pytest.raises(NotFound):
        run(access.delete_key("bob", key_id))
    assert access.authenticate_key(key).name == "ann"


def test_keys_die_with_their_account_even_if_its_name_is_taken_again(access: Access, store: DictStore) -> None:
    run(access.put_account("ann"))
    _, key = run(access.create_key("ann"))
    run(access.delete_account("ann"))
    run(access.put_account("ann", roles=["admin"]))
    for one in (access, reopened(store)):
        assert one.keys("ann") == []
        with pytest.raises(Unauthenticated):
            one.authenticate_key(key)


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
