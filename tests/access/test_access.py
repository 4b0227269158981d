"""Who may come in: guest, callers without credentials, passwords, API keys."""

from __future__ import annotations

import asyncio
import threading

import pytest

from laneway.access import Access, AccessLimits, Account, Permission, passwords
from laneway.access import access as access_module
from laneway.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    Unauthenticated,
    Unavailable,
)

from .conftest import DictStore, login, reopened, run

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


@pytest.mark.parametrize("change", ["password", "delete"])
def test_what_was_verified_is_forgotten_when_the_password_changes(access: Access, change: str) -> None:
    run(access.put_account("ann", password="right"))
    login(access, "ann", "right")
    if change == "password":
        run(access.put_account("ann", password="other"))
    else:
        run(access.delete_account("ann"))
    assert access.password_cached("ann", "right", from_loopback=True) is None
    with pytest.raises(Unauthenticated):
        login(access, "ann", "right")


def test_what_was_verified_is_kept_when_only_roles_change(access: Access) -> None:
    run(access.put_account("ann", password="right"))
    login(access, "ann", "right")
    run(access.put_account("ann", roles=["monitor"]))
    known = access.password_cached("ann", "right", from_loopback=True)
    assert known is not None and known.roles == ("monitor",)


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


@pytest.mark.parametrize(("password", "answer"), [("guest", "Account"), ("wrong", "Unauthenticated")])
def test_many_who_come_with_one_password_are_no_flood(
    store: DictStore, scrypt_calls: list[str], password: str, answer: str
) -> None:
    access = reopened(store, AccessLimits(verifications_at_once=2, verifications_waiting=3))

    async def storm() -> list[object]:
        tries = (access.authenticate_password("guest", password, from_loopback=True) for _ in range(500))
        return await asyncio.gather(*tries, return_exceptions=True)

    assert {type(one).__name__ for one in run(storm())} == {answer}
    assert len(scrypt_calls) == 1


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


# --- AWS access keys


def test_an_access_key_gives_its_secret_and_survives_a_restart(access: Access, store: DictStore) -> None:
    ann = run(access.put_account("ann"))
    key_id, secret = run(access.create_key("ann", "ci", "aws"))
    assert key_id.startswith("AKIA") and (len(key_id), len(secret)) == (20, 40)
    for one in (access, reopened(store)):
        assert one.signing_key(key_id) == (ann, secret)
        assert [(info.key_id, info.kind) for info in one.keys("ann")] == [(key_id, "aws")]
    assert access.signing_key("AKIANOBODY") is None


def test_an_access_key_is_no_api_key(access: Access) -> None:
    run(access.put_account("ann"))
    key_id, secret = run(access.create_key("ann", kind="aws"))
    for word in (key_id, secret, f"lw_{secret}"):
        with pytest.raises(Unauthenticated):
            access.authenticate_key(word)
    api_key_id, _ = run(access.create_key("ann"))
    assert access.signing_key(api_key_id) is None


def test_access_keys_end_when_they_are_deleted_or_their_account_is(access: Access, store: DictStore) -> None:
    run(access.put_account("ann"))
    first, second = (run(access.create_key("ann", kind="aws"))[0] for _ in range(2))
    run(access.delete_key("ann", first))
    assert access.signing_key(first) is None and access.signing_key(second) is not None
    run(access.delete_account("ann"))
    assert access.signing_key(second) is None and reopened(store).signing_key(second) is None
    assert store.documents("keys") == {}


def test_an_access_key_is_no_way_in_for_the_last_admin(access: Access) -> None:
    """It signs SQS requests, and accounts are managed over HTTP."""
    run(access.put_account("ann", roles=["admin"]))
    run(access.create_key("ann", kind="aws"))
    with pytest.raises(Conflict, match="last admin"):
        run(access.delete_account("guest"))
