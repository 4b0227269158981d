"""A head that is recognised by its shape means what it would mean if it were parsed."""

from __future__ import annotations

import socket

import pytest

from laneway.frontends.http.head import Head, parse_head
from laneway.frontends.http.limits import HttpLimits
from laneway.frontends.sqs.alike import Shapes, signature_of
from laneway.frontends.sqs.api import RequestPlan
from laneway.frontends.sqs.names import SqsOptions
from laneway.frontends.sqs.signing import Signature
from tests.sqs.serving import SqsServing

SIGNED = "amz-sdk-invocation-id;content-type;host;x-amz-date;x-amz-target"


def raw_head(
    *,
    date: str = "20261116T101112Z",
    number: str = "ab-1",
    signature: str = "0" * 64,
    length: str = "5",
    more: str = "",
    signed: str = SIGNED,
    target: str = "SendMessage",
) -> bytes:
    return (
        f"POST / HTTP/1.1\r\nHost: localhost:1\r\nX-Amz-Target: AmazonSQS.{target}\r\n"
        f"Content-Type: application/x-amz-json-1.0\r\nUser-Agent: 100% (Boto3)\r\nX-Amz-Date: {date}\r\n{more}"
        f"Authorization: AWS4-HMAC-SHA256 Credential=AKIA/20261116/us-east-1/sqs/aws4_request, SignedHeaders={signed}, "
        f"Signature={signature}\r\namz-sdk-invocation-id:  {number} \r\namz-sdk-request: attempt=1; max=3\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def parsed(raw: bytes) -> tuple[Head, Signature]:
    head = parse_head(raw, HttpLimits())
    assert head is not None
    plan = RequestPlan(head, SqsOptions())
    assert isinstance(head.own, Signature) and plan.refusal is None
    head.plan = plan
    return head, head.own


def learned(raw: bytes) -> Shapes:
    shapes = Shapes()
    shapes.learn(raw, *parsed(raw))
    return shapes


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"date": "20261116T235959Z"},
        {"number": "f" * 36, "length": "123456"},
        {"signature": "ab" * 32},
        {"signed": "host;x-amz-date;x-amz-target;user-agent"},
        {
            "more": "x-amz-content-sha256: " + "1f" * 32 + "\r\n",
            "signed": "host;x-amz-content-sha256;x-amz-date;x-amz-target",
        },
    ],
)
def test_what_is_recalled_is_what_would_be_parsed(own: dict[str, str]) -> None:
    kept = {name: value for name, value in own.items() if name == "signed"}
    if "more" in own:
        kept["more"] = "x-amz-content-sha256: " + "0" * 64 + "\r\n"
    found = learned(raw_head(**kept)).find(raw_head(**own))
    assert found is not None
    shape, values = found
    head, signature = parsed(raw_head(**own))
    assert signature_of(shape, values) == signature
    like = shape.head.like(int(values[shape.length_at]), None)
    for name in set(Head.__struct_fields__) - {"authorization", "headers", "own", "plan"}:
        assert getattr(like, name) == getattr(head, name), name


@pytest.mark.parametrize(
    "other",
    [
        raw_head(more="Expect: 100-continue\r\n"),
        raw_head(more="X-Amz-Date: 20261116T101112Z\r\n"),
        raw_head(target="DeleteMessage"),
        raw_head(number="ab\r\nTransfer-Encoding: chunked"),
        raw_head(number=""),
        raw_head(length="-5"),
        raw_head(length="5\r\nContent-Length: 6"),
        raw_head(date="tomorrow"),
        raw_head(signature="0" * 63),
        raw_head(signature="0" * 65),
        raw_head().replace(b"POST / ", b"POST /x "),
        raw_head().replace(b"20261116/us", b"20261117/us"),
        raw_head().replace(b"localhost:1", b"localhost:2"),
        raw_head() + b"\r\n",
    ],
)
def test_a_head_with_anything_else_in_it_is_not_recognised(other: bytes) -> None:
    assert learned(raw_head()).find(other) is None


@pytest.mark.parametrize(
    "raw",
    [
        raw_head(more="X-Amz-Date: 20261116T101112Z\r\n"),
        raw_head(more="X-Amz-Date: soon\r\n", signed="host;x-amz-date").replace(b"soon", b"20261116"),
        raw_head().replace(b"Content-Length: 5\r\n", b""),
        raw_head().replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
)
def test_a_head_that_is_not_plain_is_not_learned(raw: bytes) -> None:
    shapes = Shapes()
    head = parse_head(raw, HttpLimits())
    assert head is not None
    RequestPlan(head, SqsOptions())
    if head.own is not None:
        shapes.learn(raw, head, head.own)
    assert shapes.find(raw) is None


def test_so_many_shapes_are_remembered() -> None:
    shapes = Shapes()
    for n in range(100):
        raw = raw_head(more=f"X-Client: {n}\r\n")
        shapes.learn(raw, *parsed(raw))
    assert shapes.find(raw_head(more="X-Client: 99\r\n")) is not None
    assert shapes.find(raw_head(more="X-Client: 3\r\n")) is None


def test_heads_of_one_length_that_ask_for_different_things_are_told_apart() -> None:
    shapes = Shapes()
    targets = ("CreateQueue", "DeleteQueue")
    for target in targets:
        shapes.learn(raw_head(target=target), *parsed(raw_head(target=target)))
    for target in targets * 2:
        found = shapes.find(raw_head(target=target))
        assert found is not None
        assert found[0].head.x_amz_target == f"AmazonSQS.{target}".encode()


def test_a_head_like_others_is_held_to_the_limits_all_the_same(serving: SqsServing) -> None:
    """As it would be if it were parsed."""
    sizes = HttpLimits().body_bytes, HttpLimits().body_bytes + 1
    host, port = serving.address
    for size in sizes:
        with socket.create_connection((host, port), timeout=10) as client:
            client.sendall(raw_head(length="2") + b"{}")  # learned from
            assert client.recv(65536).startswith(b"HTTP/1.1 4")
            client.sendall(raw_head(length=str(size)) + b"{}")
            client.settimeout(10 if size == sizes[1] else 0.2)
            try:
                told = client.recv(65536)
            except TimeoutError:
                told = b""
            assert told.startswith(b"HTTP/1.1 413") == (size == sizes[1])
