"""AMQP's arguments of a queue, as settings; and what is said about those that cannot be meant."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from laneway.broker.arguments import ArgumentInvalid, Version, agrees, arguments_now, settings_from_arguments
from laneway.core.settings import QueueSettings, check_settings


def settings(**arguments: Any) -> QueueSettings:
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    if any(name.startswith(("delivery", "delayed", "quorum")) for name in arguments):
        named.setdefault("x-queue-type", "quorum")
    made = settings_from_arguments(named, durable=True, exclusive=False, auto_delete=False, max_message_bytes=5_000_000)
    return check_settings(made)


def test_a_queue_without_arguments_is_as_rabbitmq_has_it() -> None:
    made = settings()
    assert (made.durable, made.exclusive, made.auto_delete) == (True, False, False)
    assert (made.max_priority, made.priority_when_unset, made.max_receives) == (0, 0, None)
    assert (made.keep_dead, made.overflow, made.message_ttl_ms) == (False, "drop_oldest", None)
    assert (made.retention_ms, made.lease_ms, made.max_message_bytes) == (None, 1_800_000, 5_000_000)
    assert made.arguments == {}


@pytest.mark.parametrize(
    ("argument", "value", "field", "expected"),
    [
        ("message_ttl", 0, "message_ttl_ms", 0),
        ("message_ttl", 60_000, "message_ttl_ms", 60_000),
        ("message_ttl", (1 << 32) - 1, "message_ttl_ms", (1 << 32) - 1),
        ("expires", 1_800_000, "expires_ms", 1_800_000),
        ("max_length", 0, "max_messages", 0),
        ("max_length", 1 << 62, "max_messages", 1 << 40),
        ("max_length_bytes", 10, "max_bytes", 10),
        ("overflow", "drop-head", "overflow", "drop_oldest"),
        ("overflow", "reject-publish", "overflow", "reject"),
        ("overflow", b"reject-publish-dlx", "overflow", "reject_dead_letter"),
        ("dead_letter_exchange", "", "dead_letter_exchange", ""),
        ("max_priority", 255, "max_priority", 255),
        ("delivery_limit", 3, "max_receives", 4),
        ("delivery_limit", 0, "max_receives", 1),
        ("single_active_consumer", True, "single_active_consumer", True),
        ("consumer_timeout", 60_000, "lease_ms", 60_000),
        ("delayed_retry_type", "all", "retry_delay_ms", 1000),
        ("delayed_retry_type", "failed", "retry_delay_after", "failure"),
        ("delayed_retry_type", "disabled", "retry_delay_ms", None),
        ("delayed_retry_min", 500, "retry_delay_ms", None),
        ("quorum_initial_group_size", 3, "max_receives", 21),
    ],
)
def test_an_argument_becomes_a_setting_and_is_kept(argument: str, value: Any, field: str, expected: Any) -> None:
    made = settings(**{argument: value})
    assert getattr(made, field) == expected
    kept = value.decode() if isinstance(value, bytes) else value
    assert made.arguments | {"x-queue-type": "quorum"} == {
        f"x-{argument.replace('_', '-')}": kept,
        "x-queue-type": "quorum",
    }


def test_a_dead_letter_routing_key_goes_with_its_exchange() -> None:
    made = settings(dead_letter_exchange="dlx", dead_letter_routing_key="gone")
    assert (made.dead_letter_exchange, made.dead_letter_routing_key) == ("dlx", "gone")


def test_both_types_of_queue_are_taken_and_unknown_arguments_kept() -> None:
    for kind in ("classic", "quorum"):
        assert settings(queue_type=kind).arguments == {"x-queue-type": kind}
    odd = {"ha-mode": "all", "list": [1, b"x", (True,)], "map": {"deep": b"\xff"}, "none": None}
    made = settings_from_arguments(odd, durable=False, exclusive=True, auto_delete=True, max_message_bytes=1)
    assert made.arguments == {"ha-mode": "all", "list": [1, "x", [True]], "map": {"deep": "\\xff"}, "none": None}
    assert (made.durable, made.exclusive, made.auto_delete) == (False, True, True)
    check_settings(made)


@pytest.mark.parametrize(
    ("argument", "value", "term"),
    [
        ("message_ttl", "60", '"expected integer, got longstr"'),
        ("message_ttl", True, '"expected integer, got bool"'),
        ("message_ttl", -1, "{value_negative,-1}"),
        ("expires", 0, "{value_zero,0}"),
        ("max_length", 1.5, '"expected integer, got double"'),
        ("max_priority", 256, "{max_value_exceeded,256}"),
        ("overflow", "explode", "invalid_overflow"),
        ("overflow", 5, "{unacceptable_type,signedint}"),
        ("dead_letter_routing_key", "k", "routing_key_but_no_dlx_defined"),
        ("dead_letter_exchange", False, "{unacceptable_type,bool}"),
        ("queue_type", "stream", "\"unsupported queue type 'stream'\""),
        ("queue_mode", "eager", "\"unsupported queue mode 'eager'\""),
        ("single_active_consumer", "yes", "{unacceptable_type,longstr}"),
        ("delivery_limit", [1], '"expected integer, got array"'),
        ("dead_letter_exchange", "x" * 256, "{value_too_long,255}"),
        ("queue_version", 3, "\"unsupported queue version '3'\""),
        ("queue_leader_locator", "here", "invalid_queue_locator_arg"),
        ("quorum_initial_group_size", 0, "{value_zero,0}"),
        ("delayed_retry_min", 0, "{value_zero,0}"),
        ("delayed_retry_type", "often", "invalid_delayed_retry_type"),
    ],
)
def test_a_wrong_argument_is_named(argument: str, value: Any, term: str) -> None:
    with pytest.raises(ArgumentInvalid) as refused:
        settings(**{argument: value})
    name = f"x-{argument.replace('_', '-')}"
    assert (refused.value.argument, refused.value.field, refused.value.said) == (name, f"arguments.{name}", f": {term}")
    assert refused.value.message.startswith(f"{name} ") and len(refused.value.message) < 200


@pytest.mark.parametrize(
    ("setting", "argument", "value", "other"),
    [
        ({}, "x-max-priority", 10, 9),
        ({}, "x-overflow", "reject-publish", "drop-head"),
        ({"overflow": "drop_oldest"}, "x-overflow", "drop-head", "reject-publish"),
        ({}, "x-delivery-limit", 4, 5),
        ({"max_receives": None}, "x-delivery-limit", -1, 5),
        ({"message_ttl_ms": 60_000}, "x-message-ttl", 60_000, 60_001),
        ({"expires_ms": 5}, "x-expires", 5, 6),
        ({"max_messages": 7}, "x-max-length", 7, 8),
        ({"max_bytes": 7}, "x-max-length-bytes", 7, 8),
        ({"single_active_consumer": True}, "x-single-active-consumer", True, 1),
        ({"dead_letter_exchange": "dlx"}, "x-dead-letter-exchange", "dlx", ""),
        ({"dead_letter_queue": "dead"}, "x-dead-letter-exchange", "", "dlx"),
        ({"dead_letter_queue": "dead"}, "x-dead-letter-routing-key", "dead", "alive"),
    ],
)
def test_settings_that_came_without_arguments_agree_with_those_that_say_the_same(
    setting: dict[str, Any], argument: str, value: Any, other: Any
) -> None:
    there = QueueSettings(**setting)
    assert agrees(argument, {argument: value}, there)
    assert not agrees(argument, {argument: other}, there)
    assert agrees(argument, {}, there), "what was not declared need not be given"


def test_a_queue_that_was_changed_is_declared_as_before_or_as_it_is_now() -> None:
    there = msgspec.structs.replace(settings(message_ttl=1_000), message_ttl_ms=5_000)
    ways: dict[int | None, bool] = {1_000: True, 5_000: True, 3_000: False, None: False}
    for ttl, right in ways.items():
        given = {} if ttl is None else {"x-message-ttl": ttl}
        assert agrees("x-message-ttl", given, there) is right, ttl
    assert arguments_now(there) == {"x-message-ttl": 5_000}
    unlimited = msgspec.structs.replace(there, message_ttl_ms=None)
    assert agrees("x-message-ttl", {}, unlimited) and arguments_now(unlimited) == {}


def test_arguments_now_are_those_that_were_declared() -> None:
    assert arguments_now(settings()) == {}
    declared = {
        "x-queue-type": "quorum",
        "x-overflow": "drop-head",
        "x-delivery-limit": -1,
        "x-delayed-retry-type": "returned",
        "x-delayed-retry-min": 10,
        "x-delayed-retry-max": 20,
        "x-note": "kept",
        "x-expires": 9,
    }
    named = {name.removeprefix("x-").replace("-", "_"): value for name, value in declared.items()}
    assert arguments_now(settings(**named)) == declared


def test_an_argument_of_another_type_of_queue_is_refused() -> None:
    for argument, value, kind, version in (
        ("x-delivery-limit", 3, "classic", "4.0"),
        ("x-delayed-retry-type", "all", "classic", "4.0"),
        ("x-queue-leader-locator", "balanced", "classic", "3.10"),
        ("x-max-priority", 5, "quorum", "4.0"),
        ("x-max-age", "1D", "quorum", "4.0"),
    ):
        named = {argument: value, "x-queue-type": kind}
        with pytest.raises(ArgumentInvalid) as refused:
            settings_from_arguments(
                named, durable=True, exclusive=False, auto_delete=False, max_message_bytes=1, version=version
            )
        assert refused.value.said == f" of queue type rabbit_{kind}_queue"
    assert settings(queue_leader_locator="balanced").arguments == {"x-queue-leader-locator": "balanced"}


def test_a_quorum_queue_has_the_delivery_limit_of_the_version_that_is_announced() -> None:
    def limit(version: Version, **more: Any) -> int | None:
        named = {"x-queue-type": "quorum", **more}
        common = {"durable": True, "exclusive": False, "auto_delete": False, "max_message_bytes": 1}
        return settings_from_arguments(named, version=version, **common).max_receives

    assert (limit("4.0"), limit("3.10"), limit("4.0", **{"x-delivery-limit": -1})) == (21, None, None)
