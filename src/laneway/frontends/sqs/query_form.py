"""The older Query form: a form-encoded body (or query string) with Action=…, an XML document back.

    Attribute.1.Name=VisibilityTimeout&Attribute.1.Value=60   ⇄   {"Attributes": {"VisibilityTimeout": "60"}}

Lists and maps are numbered members of singular names; the tables below say which.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from laneway.frontends.sqs.errors import KINDS, SqsError, decode_error

_NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
_MAX_PARTS = 2000
_encode = msgspec.json.Encoder().encode
_MAX_DEPTH = 8  # deeper than any parameter goes

#: member on the wire -> the list it is of
_LISTS = {
    "AWSAccountId": "AWSAccountIds",
    "ActionName": "Actions",
    "AttributeName": "AttributeNames",
    "ChangeMessageVisibilityBatchRequestEntry": "Entries",
    "DeleteMessageBatchRequestEntry": "Entries",
    "MessageAttributeName": "MessageAttributeNames",
    "MessageSystemAttributeName": "MessageSystemAttributeNames",
    "SendMessageBatchRequestEntry": "Entries",
    "TagKey": "TagKeys",
}
#: member on the wire -> (the map it is of, what its keys are called)
_MAPS = {
    "Attribute": ("Attributes", "Name"),
    "MessageAttribute": ("MessageAttributes", "Name"),
    "MessageSystemAttribute": ("MessageSystemAttributes", "Name"),
    "Tag": ("Tags", "Key"),
}
#: And of answers: what one member of a list or map is called.
_MEMBERS = {
    "Attributes": "Attribute",
    "Failed": "BatchResultErrorEntry",
    "MessageAttributes": "MessageAttribute",
    "Messages": "Message",
    "QueueUrls": "QueueUrl",
    "Results": "ListMessageMoveTasksResultEntry",
    "Tags": "Tag",
    "queueUrls": "QueueUrl",
}
_PLURALS = {*_LISTS.values(), *(plural for plural, _ in _MAPS.values())}
#: What the JSON of the Query form calls otherwise.
_JSON_NAMES = {"Messages": "messages", "QueueUrls": "queueUrls"}
_NO_QUEUE = KINDS["QueueDoesNotExist"]
_UNKNOWN = KINDS["UnknownOperation"]
_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[&<>]")
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"}


class QueryForm:
    content_type = b"text/xml"

    def is_allowed(self, body: bytes) -> bool:
        return False

    def parameters(self, *texts: bytes) -> dict[str, str]:
        """All parameters of a body and a query string."""
        given: dict[str, str] = {}
        for text in texts:
            try:
                given |= parse_qsl(
                    text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_PARTS
                )
            except ValueError:
                raise SqsError("SerializationException", "The request is no form-encoded UTF-8.") from None
        return given

    def decode(self, kind: type[Any], parameters: Mapping[str, str]) -> Any:
        tree: dict[str, Any] = {}
        for name, value in parameters.items():
            at = tree
            *path, last = name.split(".", _MAX_DEPTH)
            for part in path:
                inner = at.setdefault(part, {})
                if not isinstance(inner, dict):
                    raise SqsError("SerializationException", f"The parameter {name[:100]} contradicts another.")
                at = inner
            at[last] = value
        members = _joined(tree)
        if "tags" in kind.__struct_fields__ and "Tags" in members:
            members["tags"] = members.pop("Tags")
        try:
            return msgspec.convert(members, kind, strict=False)
        except msgspec.ValidationError as error:
            raise decode_error(error) from None

    def result(self, action: str, result: Any, request_id: str) -> bytes:
        inner = ""
        if result is not None:
            members = _struct(result, action)
            inner = f"<{action}Result>{members}</{action}Result>" if members else f"<{action}Result/>"
        return (
            f'<?xml version="1.0"?><{action}Response xmlns="{_NAMESPACE}">{inner}<ResponseMetadata><RequestId>'
            f"{request_id}</RequestId></ResponseMetadata></{action}Response>"
        ).encode()

    def failure(self, error: SqsError, request_id: str) -> tuple[bytes, bytes]:
        kind = error.kind
        if kind is _UNKNOWN:
            return b"<UnknownOperationException/>\n", b""
        body = (
            f'<?xml version="1.0"?><ErrorResponse xmlns="{_NAMESPACE}"><Error><Type>'
            f"{'Sender' if kind.is_senders else 'Receiver'}</Type><Code>{kind.code}</Code><Message>"
            f"{_text(_message(error))}</Message><Detail/></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
        )
        return body.encode(), b""


class QueryJsonForm(QueryForm):
    """The Query form for those who ask for JSON with Accept: the same answers, with lists of pairs for maps."""

    content_type = b"application/json"

    def result(self, action: str, result: Any, request_id: str) -> bytes:
        inner = {} if result is None else {f"{action}Result": _plain(result)}
        return _encode({f"{action}Response": {**inner, "ResponseMetadata": {"RequestId": request_id}}})

    def failure(self, error: SqsError, request_id: str) -> tuple[bytes, bytes]:
        kind = error.kind
        fault = "Sender" if kind.is_senders else "Receiver"
        told = {"Type": fault, "Code": kind.code, "Message": _message(error)}
        return _encode({"Error": told, "RequestId": request_id}), b""


def _message(error: SqsError) -> str:
    return "The specified queue does not exist for this wsdl version." if error.kind is _NO_QUEUE else error.message


def _plain(value: Any) -> Any:
    """A result as JSON says it here: what is missing is null."""
    if isinstance(value, msgspec.Struct):
        members = {name: getattr(value, name) for name in value.__struct_fields__}
        return {
            _JSON_NAMES.get(name, name): _pairs(name, one) if isinstance(one, dict) else _plain(one)
            for name, one in members.items()
        }
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _pairs(name: str, given: dict[str, Any]) -> list[dict[str, Any]] | None:
    key = "Key" if name == "Tags" else "Name"
    return [{key: one, "Value": _plain(value)} for one, value in given.items()] or None


def _joined(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Numbered members as lists and maps, under the names that the requests have."""
    members: dict[str, Any] = {}
    for name, value in tree.items():
        if name in _PLURALS and value == "":  # how an empty list is said, which is what is taken for a missing one
            continue
        if name in _LISTS and isinstance(value, str):  # one of it, without a number
            members[_LISTS[name]] = [value] if value else []
        elif name in _MAPS and isinstance(value, dict) and _MAPS[name][1] in value:
            members[_MAPS[name][0]] = {str(value[_MAPS[name][1]]): value.get("Value", "")}
        elif name in _LISTS and isinstance(value, dict):
            members[_LISTS[name]] = [_joined(one) if isinstance(one, dict) else one for one in _in_order(value)]
        elif name in _MAPS and isinstance(value, dict):
            plural, key = _MAPS[name]
            pairs = [one for one in _in_order(value) if isinstance(one, dict)]
            members[plural] = {str(one.get(key, "")): one.get("Value", "") for one in pairs}
        else:
            members[name] = value
    return members


def _in_order(numbered: Mapping[str, Any]) -> list[Any]:
    try:
        return [numbered[number] for number in sorted(numbered, key=int)]
    except ValueError:
        raise SqsError("SerializationException", "Members of a list are numbered from 1.") from None


def _struct(value: Any, action: str) -> str:
    return "".join(
        _member(name, getattr(value, name), action)
        for name in value.__struct_fields__
        if getattr(value, name) is not None
    )


def _member(name: str, value: Any, action: str) -> str:
    if isinstance(value, list):
        member = f"{action}ResultEntry" if name == "Successful" else _MEMBERS[name]
        return "".join(_element(member, one, action) for one in value)
    if isinstance(value, dict):
        member, key = _MEMBERS[name], "Key" if name == "Tags" else "Name"
        return "".join(
            f"<{member}><{key}>{_text(one)}</{key}>{_element('Value', inner, action)}</{member}>"
            for one, inner in value.items()
        )
    return _element(name, value, action)


def _element(name: str, value: Any, action: str) -> str:
    if isinstance(value, msgspec.Struct):
        inner = _struct(value, action)
    elif isinstance(value, bytes):
        inner = base64.b64encode(value).decode()
    elif isinstance(value, bool):
        inner = "true" if value else "false"
    else:
        inner = _text(str(value))
    return f"<{name}>{inner}</{name}>"


def _text(text: str) -> str:
    """Escaped. What XML cannot say at all, and other protocols can, becomes a replacement character."""
    return _NOT_XML.sub(lambda found: _ESCAPES.get(found[0], "\ufffd"), text)
