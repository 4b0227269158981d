"""Makes a session of boto3 speak the older Query form: the service model it ships, with the member names that models
had while that form was the usual one. So the serialiser and parser that judge us are botocore's own."""

from __future__ import annotations

from typing import Any

_LIST_MEMBERS = {
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "AttributeNameList": "AttributeName",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "BinaryList": "BinaryListValue",
    "ChangeMessageVisibilityBatchRequestEntryList": "ChangeMessageVisibilityBatchRequestEntry",
    "ChangeMessageVisibilityBatchResultEntryList": "ChangeMessageVisibilityBatchResultEntry",
    "DeleteMessageBatchRequestEntryList": "DeleteMessageBatchRequestEntry",
    "DeleteMessageBatchResultEntryList": "DeleteMessageBatchResultEntry",
    "ListMessageMoveTasksResultEntryList": "ListMessageMoveTasksResultEntry",
    "MessageAttributeNameList": "MessageAttributeName",
    "MessageList": "Message",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "QueueUrlList": "QueueUrl",
    "SendMessageBatchRequestEntryList": "SendMessageBatchRequestEntry",
    "SendMessageBatchResultEntryList": "SendMessageBatchResultEntry",
    "StringList": "StringListValue",
    "TagKeyList": "TagKey",
}
_MAP_MEMBERS = {
    "MessageBodyAttributeMap": ("MessageAttribute", "Name"),
    "MessageBodySystemAttributeMap": ("MessageSystemAttribute", "Name"),
    "MessageSystemAttributeMap": ("Attribute", "Name"),
    "QueueAttributeMap": ("Attribute", "Name"),
    "TagMap": ("Tag", "Key"),
}


def speak_query(session: Any) -> None:
    loader = session._session.get_component("data_loader")
    load = loader.load_service_model

    def loaded(service: str, kind: str, api_version: str | None = None) -> Any:
        model = load(service, kind, api_version)
        return as_query(model) if service == "sqs" and kind == "service-2" else model

    loader.load_service_model = loaded


def as_query(model: dict[str, Any]) -> dict[str, Any]:
    metadata = {**model["metadata"], "protocol": "query", "protocols": ["query"]}
    metadata["xmlNamespace"] = "http://queue.amazonaws.com/doc/2012-11-05/"
    metadata.pop("awsQueryCompatible", None)
    shapes: dict[str, Any] = {}
    for name, shape in model["shapes"].items():
        shape = dict(shape)
        if name in _LIST_MEMBERS:
            shape["member"] = {**shape["member"], "locationName": _LIST_MEMBERS[name]}
        if name in _MAP_MEMBERS:
            shape["key"] = {**shape["key"], "locationName": _MAP_MEMBERS[name][1]}
            shape["value"] = {**shape["value"], "locationName": "Value"}
        if "members" in shape:
            shape["members"] = {member: _named(inner) for member, inner in shape["members"].items()}
        shapes[name] = shape
    operations = {}
    for name, operation in model["operations"].items():
        operation = dict(operation)
        if "output" in operation:
            operation["output"] = {**operation["output"], "resultWrapper": f"{name}Result"}
        operations[name] = operation
    return {**model, "metadata": metadata, "shapes": shapes, "operations": operations}


def _named(member: dict[str, Any]) -> dict[str, Any]:
    shape = member["shape"]
    if shape in _MAP_MEMBERS:
        return {**member, "locationName": _MAP_MEMBERS[shape][0]}
    if shape in _LIST_MEMBERS:
        return {**member, "locationName": _LIST_MEMBERS[shape]}
    return member
