"""Who may ask: signatures in headers and in URLs, made by botocore; permissions; and nobody without a signature unless
that is set up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore import UNSIGNED
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

from laneway.access import Permission
from laneway.frontends.sqs.signing import normal_path
from tests.sqs.serving import ACCOUNT_ID, REGION, SqsServing, bodies, refusal

NewName = Callable[..., str]


@pytest.fixture
def sqs(serving: SqsServing) -> Any:
    """In one form: what is signed is the same in both."""
    return serving.sqs()


def test_keys_that_are_wrong(serving: SqsServing) -> None:
    key_id, secret = serving.key
    wrong = secret[:-1] + ("y" if secret.endswith("x") else "x")
    code, text = refusal(serving.sqs((key_id, wrong)).list_queues)
    assert code == "SignatureDoesNotMatch" and text.startswith("The request signature we calculated does not match")
    assert refusal(serving.sqs(("AKIANOBODY", secret)).list_queues) == (
        "InvalidClientTokenId",
        "The security token included in the request is invalid.",
    )


def test_without_a_signature_nobody_is_let_in(serving: SqsServing) -> None:
    import boto3

    client = boto3.client(
        "sqs", endpoint_url=serving.url, region_name=REGION, config=Config(signature_version=UNSIGNED)
    )
    assert refusal(client.list_queues)[0] == "MissingAuthenticationToken"


def test_a_deleted_key_is_refused_at_once(serving: SqsServing) -> None:
    key = serving.new_key("root")
    client = serving.sqs(key)
    client.list_queues()
    serving.run(serving.access.delete_key("root", key[0]))
    assert refusal(client.list_queues)[0] == "InvalidClientTokenId"


def test_a_key_is_made_over_http_and_survives_a_restart(tmp_path: Path) -> None:
    with SqsServing(tmp_path) as serving, serving.client(auth=("root", "secret")) as http:
        made = http.post("/accounts/root/keys", json={"kind": "aws", "label": "ci"}).json()
        assert made["kind"] == "aws" and len(made["key_id"]) == 20 and len(made["key"]) == 40
        listed = http.get("/accounts/root/keys").json()["keys"]
        assert [one["kind"] for one in listed] == ["aws", "aws"] and all("key" not in one for one in listed)
        # The secret is no API key.
        assert httpx.get(f"{serving.url}/queues", headers={"Authorization": f"Bearer {made['key']}"}).status_code == 401
    with SqsServing(tmp_path) as serving, serving.client(auth=("root", "secret")) as http:
        serving.sqs((made["key_id"], made["key"])).list_queues()
        assert http.delete(f"/accounts/root/keys/{made['key_id']}").status_code == 204
        assert refusal(serving.sqs((made["key_id"], made["key"])).list_queues)[0] == "InvalidClientTokenId"


@contextlib.contextmanager
def moved_clock(serving: SqsServing, seconds: int) -> Iterator[None]:
    serving.signing_ahead_s = seconds
    try:
        yield
    finally:
        serving.signing_ahead_s = 0


@pytest.mark.parametrize(("ahead_s", "word"), [(16 * 60, "expired"), (-16 * 60, "not yet current")])
def test_an_old_signature_is_refused(serving: SqsServing, sqs: Any, ahead_s: int, word: str) -> None:
    with moved_clock(serving, ahead_s):
        code, text = refusal(sqs.list_queues)
    assert code == "SignatureDoesNotMatch" and word in text
    with moved_clock(serving, ahead_s * 14 // 16):
        sqs.list_queues()


def test_what_was_signed_cannot_be_changed(serving: SqsServing, sqs: Any, new_name: NewName) -> None:
    """Body, action and path: each is in the signature."""
    queue = sqs.create_queue(QueueName=new_name())["QueueUrl"]
    body = b'{"QueueUrl": "%b", "MessageBody": "x"}' % queue.encode()
    headers = {"X-Amz-Target": "AmazonSQS.SendMessage", "Content-Type": "application/x-amz-json-1.0"}
    request = AWSRequest("POST", serving.url + "/", headers=headers, data=body)
    SigV4Auth(Credentials(*serving.key), "sqs", REGION).add_auth(request)
    signed = dict(request.headers)
    assert httpx.post(serving.url + "/", headers=signed, content=body).status_code == 200
    for changed in (
        httpx.post(serving.url + "/", headers=signed, content=body.replace(b'"x"', b'"y"')),
        httpx.post(serving.url + "/", headers={**signed, "X-Amz-Target": "AmazonSQS.DeleteQueue"}, content=body),
        httpx.post(serving.url + "/other", headers=signed, content=body),
        httpx.post(serving.url + "/?a=b", headers=signed, content=body),
        httpx.put(serving.url + "/", headers=signed, content=body),
        httpx.post(serving.url + "/", headers={**signed, "Host": "elsewhere"}, content=body),
        httpx.post(serving.url + "/", headers={**signed, "X-Amz-Security-Token": "x"}, content=body),
    ):
        assert changed.status_code == 403
        assert changed.headers["x-amzn-query-error"] == "SignatureDoesNotMatch;Sender"


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        ("AWS4-HMAC-SHA256", "IncompleteSignature"),
        ("AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=x", "IncompleteSignature"),
        (
            "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x",
            "SignatureDoesNotMatch",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/sqs/aws4_request, SignedHeaders=x-amz-date, Signature=x",
            "SignatureDoesNotMatch",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=a/20260102/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=x",
            "SignatureDoesNotMatch",
        ),
    ],
)
def test_signatures_that_are_none(serving: SqsServing, authorization: str, code: str) -> None:
    headers = {"Authorization": authorization, "X-Amz-Date": "20260101T000000Z", "X-Amz-Target": "AmazonSQS.ListQueues"}
    answer = httpx.post(serving.url, headers=headers, content=b"{}")
    assert answer.headers["x-amzn-query-error"].partition(";")[0] == code
    assert answer.headers["content-type"] == "application/x-amz-json-1.0"


@pytest.mark.parametrize("unsigned", ["x-amz-target", "x-amz-date", "host"])
def test_what_says_what_is_asked_for_must_be_signed(serving: SqsServing, unsigned: str) -> None:
    """A client that leaves one out is refused, though its signature is right."""

    class Careless(SigV4Auth):
        def headers_to_sign(self, request: Any) -> Any:
            headers = super().headers_to_sign(request)
            del headers[unsigned]
            return headers

    request = AWSRequest("POST", serving.url + "/", headers={"X-Amz-Target": "AmazonSQS.ListQueues"}, data=b"{}")
    Careless(Credentials(*serving.key), "sqs", REGION).add_auth(request)
    answer = httpx.post(serving.url + "/", headers=dict(request.headers), content=b"{}")
    assert answer.headers["x-amzn-query-error"] == "SignatureDoesNotMatch;Sender"
    assert unsigned in answer.json()["message"].lower()


def presigned(serving: SqsServing, path: str, expires_s: int = 60) -> str:
    request = AWSRequest("GET", serving.url + path)
    SigV4QueryAuth(Credentials(*serving.key), "sqs", REGION, expires=expires_s).add_auth(request)
    return str(request.prepare().url)


def test_a_presigned_url_is_enough(serving: SqsServing, sqs: Any, new_name: NewName) -> None:
    name = new_name()
    queue = sqs.create_queue(QueueName=name)["QueueUrl"]
    asked = "Action=SendMessage&MessageBody=h%C3%A4llo%20%26%2B&Version=2012-11-05"
    url = presigned(serving, f"/{ACCOUNT_ID}/{name}?{asked}")
    answer = httpx.get(url)
    assert answer.status_code == 200 and "<SendMessageResult>" in answer.text
    assert answer.headers["content-type"] == "text/xml"
    assert bodies(sqs.receive_message(QueueUrl=queue)) == ["hällo &+"]
    assert "SignatureDoesNotMatch" in httpx.get(url.replace("SendMessage", "PurgeQueue")).text
    with moved_clock(serving, 61):
        assert "RequestExpired" in httpx.get(url).text
    assert "IncompleteSignature" in httpx.get(url.replace("X-Amz-Expires=60", "X-Amz-Expires=604801")).text


def test_a_presigned_url_is_good_for_what_was_signed_alone(serving: SqsServing, sqs: Any, new_name: NewName) -> None:
    name = new_name()
    sqs.create_queue(QueueName=name)
    url = presigned(serving, f"/?Action=GetQueueUrl&QueueName={name}&Version=2012-11-05")
    assert name in httpx.get(url).text
    for answer in (
        httpx.get(url, headers={"X-Amz-Target": "AmazonSQS.ListQueues"}),
        httpx.request("GET", url, headers={"X-Amz-Target": "AmazonSQS.DeleteQueue"}, content=b'{"QueueUrl": "x"}'),
        httpx.request("GET", url, content=b"Action=ListQueues"),
        httpx.post(url, content=b"Action=ListQueues"),
        httpx.get(url + "&Action=ListQueues"),
        httpx.get(url.replace("Action=GetQueueUrl", "Action=ListQueues")),
        httpx.get(url, headers={"X-Amz-Date": "20260101T000000Z"}),
        httpx.get(url, headers={"Host": "elsewhere"}),
        httpx.get(url.replace("/?", f"/{ACCOUNT_ID}/{name}?")),
        httpx.get(url.replace("X-Amz-Algorithm=AWS4-HMAC-SHA256", "X-Amz-Algorithm=none")),
    ):
        assert 400 <= answer.status_code < 500 and name not in answer.text, answer.text
    target = serving.url.removeprefix("http://")
    with serving.connect() as wire:  # httpx would normalise that
        path = url.partition(target)[2].replace("/?", f"/{ACCOUNT_ID}/..?")
        wire.send(f"GET {path} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        assert f"/{name}<".encode() in wire.read().body  # nothing was read from the path but what was signed


def test_of_a_presigned_parameter_that_comes_twice_nobody_chooses_one(serving: SqsServing) -> None:
    url = presigned(serving, "/?Action=ListQueues&Version=2012-11-05") + "&Action=GetQueueUrl"
    assert "comes more than once in the query string" in httpx.get(url).text


@pytest.mark.parametrize(
    ("path", "normal"),
    [("/", "/"), ("/a/b/", "/a/b/"), ("/a/./b//c/../d", "/a/b/d"), ("/../..", "/"), ("/a%2F../%41", "/a%2F../%41")],
)
def test_paths_are_read_as_they_are_signed(path: str, normal: str) -> None:
    assert normal_path(path.encode()) == normal.encode()


@pytest.mark.parametrize(
    ("ahead_s", "code"), [(-16 * 60, "SignatureDoesNotMatch"), (7 * 86_400 + 60, "RequestExpired")]
)
def test_a_presigned_url_is_good_neither_before_nor_behind_its_time(
    serving: SqsServing, ahead_s: int, code: str
) -> None:
    url = presigned(serving, "/?Action=ListQueues&Version=2012-11-05", expires_s=7 * 86_400)
    with moved_clock(serving, ahead_s):
        assert code in httpx.get(url).text
    assert httpx.get(url).status_code == 200


def test_permissions_count_as_everywhere(serving: SqsServing, sqs: Any, new_name: NewName) -> None:
    allowed, other = new_name("-mine"), new_name("-other")
    for name in (allowed, other):
        sqs.create_queue(QueueName=name)
    serving.run(serving.access.put_account("sender", permissions=[Permission(queue="*-mine", write=True)]))
    sender = serving.sqs(serving.new_key("sender"))
    url = sender.get_queue_url(QueueName=allowed)["QueueUrl"]
    sender.send_message(QueueUrl=url, MessageBody="x")
    assert all(one.endswith("-mine") for one in sender.list_queues()["QueueUrls"])
    assert refusal(sender.receive_message, QueueUrl=url) == (
        "AccessDenied",
        f"User: arn:aws:iam::{ACCOUNT_ID}:user/sender is not authorized to perform: sqs:receivemessage on resource: "
        f"arn:aws:sqs:{REGION}:{ACCOUNT_ID}:{allowed}",
    )
    forbidden = url.replace(allowed, other)
    for call, parameters in (
        (sender.send_message, {"MessageBody": "x"}),
        (sender.delete_queue, {}),
        (sender.purge_queue, {}),
        (sender.get_queue_attributes, {"AttributeNames": ["All"]}),
        (sender.set_queue_attributes, {"Attributes": {"DelaySeconds": "1"}}),
        (sender.delete_message, {"ReceiptHandle": "x"}),
    ):
        assert refusal(call, QueueUrl=forbidden, **parameters)[0] == "AccessDenied"
    assert refusal(sender.create_queue, QueueName=new_name())[0] == "AccessDenied"
    assert refusal(sender.get_queue_url, QueueName=other)[0] == "AccessDenied"


def test_a_permission_that_is_taken_away_counts_at_once(serving: SqsServing, sqs: Any, new_name: NewName) -> None:
    url = sqs.create_queue(QueueName=new_name())["QueueUrl"]
    granted = Permission(queue="*", read=True, write=True)
    serving.run(serving.access.put_account("fleeting", permissions=[granted]))
    client = serving.sqs(serving.new_key("fleeting"))
    for _ in range(3):  # until the head is known by its shape, and the queue by its URL
        client.send_message(QueueUrl=url, MessageBody="x")
        client.receive_message(QueueUrl=url)
    serving.run(serving.access.put_account("fleeting", permissions=[Permission(queue="*", read=True)]))
    assert refusal(client.send_message, QueueUrl=url, MessageBody="x")[0] == "AccessDenied"
    client.receive_message(QueueUrl=url)
    serving.run(serving.access.put_account("fleeting", permissions=[granted]))
    client.send_message(QueueUrl=url, MessageBody="x")


def test_a_queue_that_was_deleted_and_made_again_is_another(tmp_path: Path) -> None:
    with SqsServing(tmp_path, waiting_periods=False) as serving:
        sqs = serving.sqs()
        name = "again"
        url = sqs.create_queue(QueueName=name)["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="x" * 2000)
        sqs.delete_queue(QueueUrl=url)
        assert refusal(sqs.send_message, QueueUrl=url, MessageBody="x")[0].endswith("NonExistentQueue")
        sqs.create_queue(QueueName=name, Attributes={"MaximumMessageSize": "1024"})
        assert refusal(sqs.send_message, QueueUrl=url, MessageBody="x" * 2000)[0].endswith("InvalidParameterValue")


class TestAnonymous:
    """Set up: whoever comes from this machine needs no key, until there is an account."""

    @pytest.fixture
    def open_serving(self, tmp_path: Path) -> Iterator[SqsServing]:
        with SqsServing(tmp_path, anonymous=True) as serving:
            yield serving

    def test_any_key_or_none_will_do(self, open_serving: SqsServing) -> None:
        import boto3

        unsigned = boto3.client(
            "sqs", endpoint_url=open_serving.url, region_name=REGION, config=Config(signature_version=UNSIGNED)
        )
        url = unsigned.create_queue(QueueName="q")["QueueUrl"]
        made_up = open_serving.sqs(("test", "test"))
        made_up.send_message(QueueUrl=url, MessageBody="x")
        assert bodies(unsigned.receive_message(QueueUrl=url)) == ["x"]

    def test_until_there_is_an_account(self, open_serving: SqsServing) -> None:
        open_serving.run(open_serving.access.put_account("ann", password="x", roles=["admin"]))
        assert refusal(open_serving.sqs(("test", "test")).list_queues)[0] == "InvalidClientTokenId"
        assert open_serving.sqs(open_serving.new_key("ann")).list_queues()

    def test_a_web_page_is_nobody(self, open_serving: SqsServing) -> None:
        """A form on any page can be posted here without being asked: the browser says where it comes from."""
        form = {"Action": "CreateQueue", "QueueName": "q", "Version": "2012-11-05"}
        answer = httpx.post(open_serving.url, data=form, headers={"Origin": "https://evil.example"})
        assert answer.status_code == 403 and "AccessDenied" in answer.text
        rebound = httpx.post(open_serving.url, data=form, headers={"Host": "evil.example"})
        assert rebound.status_code == 403
        assert httpx.post(open_serving.url, data=form).status_code == 200


def test_the_http_api_is_still_there(serving: SqsServing) -> None:
    with serving.client(auth=("root", "secret")) as http:
        assert http.get("/").json()["name"] == "laneway"
        assert http.get("/queues").status_code == 200
        assert http.post("/", json={}).status_code == 405
        assert http.get("/nowhere").json()["error"]["code"]
        other_service = http.post("/", json={}, headers={"X-Amz-Target": "DynamoDB_20120810.ListTables"})
        assert other_service.status_code == 405


def test_a_url_works_from_where_the_client_stands(serving: SqsServing, new_name: NewName) -> None:
    """The URL names the host that the client called. That it was called with TLS counts from trusted proxies alone."""
    headers = {"Host": "queues.example:8443", "X-Forwarded-Proto": "https", "X-Amz-Target": "AmazonSQS.CreateQueue"}
    name = new_name()
    body = b'{"QueueName": "%b"}' % name.encode()
    request = AWSRequest("POST", "http://queues.example:8443/", headers=headers, data=body)
    SigV4Auth(Credentials(*serving.key), "sqs", REGION).add_auth(request)
    answer = httpx.post(serving.url, headers=dict(request.headers), content=request.data)
    assert answer.json() == {"QueueUrl": f"http://queues.example:8443/{ACCOUNT_ID}/{name}"}
