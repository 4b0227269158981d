"""The OpenAPI 3.1 document, made from the table of routes and the structs of requests and answers, so that it cannot
say anything else than they do."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from laneway.frontends.rest.answers import ErrorAnswer
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.rest.routing import ApiRoute, Each, Text

_REF = "#/components/schemas/{name}"
_JSON = "application/json"
_ALWAYS = (400, 408, 414, 431, 503)  # any request may be refused with these
_WITH_ACCOUNT = (401, 403)

_PATH_PARTS = {
    "queue": "Name of the queue, percent-encoded",
    "vhost": "Name of the virtual host, percent-encoded (/ is %2F); the plain paths use the one named /",
    "exchange": "Name of the exchange, percent-encoded; the default exchange is amq.default",
    "destination": "Name of the exchange that messages go on to",
    "message_id": "Id of the message",
    "task_id": "Id of the task",
    "name": "Name of the account",
    "key_id": "Id of the key",
    "producer": "Name of the producer, percent-encoded",
    "stage": "Name of the stage: letters, digits, dots, hyphens and underscores",
    "part": "Name of the part: letters, digits, dots, hyphens and underscores",
    "batch": "Number of the batch",
    "segment": "Number of the segment",
    "cursor": "Name of the cursor, percent-encoded",
    "connection": "Id of the connection",
    "channel": "Number of the channel",
    "consumer": "Number of the consumer on its connection",
}


def openapi_document(routes: Sequence[ApiRoute], limits: RestLimits, version: str) -> dict[str, Any]:
    types: list[Any] = [ErrorAnswer]
    for route in routes:
        for kind in (route.request, route.options, *route.answers.values()):
            types += kind.kinds if isinstance(kind, Each) else () if kind is None or isinstance(kind, Text) else (kind,)
    found, components = msgspec.json.schema_components(types, ref_template=_REF)
    schemas = {id(kind): schema for kind, schema in zip(types, found, strict=True)}
    for schema in components.values():
        _tidy(schema)
    _say_limits(components, limits)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        for at, path in enumerate(route.paths()):
            paths.setdefault(path, {})[route.method.lower()] = _operation(route, path, at, schemas, components, limits)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Laneway",
            "version": version,
            "description": "A durable priority message queue. Times are RFC 3339 in UTC; durations are in seconds.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "an API key, lw_…"},
                "password": {"type": "http", "scheme": "basic"},
            },
        },
        "security": [{"key": []}, {"password": []}, {}],
    }


def _operation(
    route: ApiRoute, path: str, at: int, schemas: dict[int, Any], components: dict[str, Any], limits: RestLimits
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name + ("", "_in_vhost", "_short")[at],
        "summary": route.summary,
        "parameters": _parameters(route, path, components),
        "responses": _responses(route, schemas),
    }
    if route.name in ("publish", "publish_to_exchange"):
        operation["parameters"].append(_IDEMPOTENCY_KEY)
    if route.request is not None:
        schema = schemas[id(route.request)]
        if schema.get("type") == "array":
            schema = {"minItems": 1, "maxItems": limits.batch_count, **schema}
        for choice in schema.get("anyOf", ()):
            if choice.get("type") == "array":
                choice.update(minItems=1, maxItems=limits.batch_count)
        content: dict[str, Any] = {_JSON: {"schema": schema}}
        if route.takes_bytes:
            content["application/octet-stream"] = {"schema": {"type": "string", "contentMediaType": "*/*"}}
        if route.takes_msgpack:
            content["application/msgpack"] = {"schema": schema}
        operation["requestBody"] = {"required": not route.body_optional, "content": content}
    if route.public:
        operation["security"] = [{}]
    return operation


_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A repeat with the same key and body within 24 hours gives the first answer's ids",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}


def _parameters(route: ApiRoute, path: str, components: dict[str, Any]) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": description,
            "schema": {"type": "string", "minLength": 1},
        }
        for name, description in _PATH_PARTS.items()
        if f"{{{name}}}" in path
    ]
    if route.options is not None:
        options = components[route.options.__name__]
        for name, schema in options["properties"].items():
            required = name in options.get("required", ())
            parameters.append({"name": name, "in": "query", "required": required, "schema": schema})
    return parameters


def _responses(route: ApiRoute, schemas: dict[int, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, kind in route.answers.items():
        responses[str(status)] = {"description": HTTPStatus(status).phrase}
        if isinstance(kind, Each):
            schema = {"type": "array", "items": {"anyOf": [schemas[id(one)] for one in kind.kinds]}}
            responses[str(status)]["content"] = {_JSON: {"schema": schema}}
        elif kind is bytes:
            content = {"type": "string", "contentMediaType": "application/octet-stream"}
            responses[str(status)]["content"] = {"application/octet-stream": {"schema": content}}
        elif isinstance(kind, Text):
            responses[str(status)]["content"] = {kind.content_type: {"schema": {"type": "string"}}}
        elif kind is not None:
            responses[str(status)]["content"] = {_JSON: {"schema": schemas[id(kind)]}}
    refusals = {*_ALWAYS, *route.refusals, *(() if route.public else _WITH_ACCOUNT)}
    if route.request is not None:
        refusals |= {413, 415, 417}
    for status in sorted(refusals - set(route.answers)):
        responses[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {_JSON: {"schema": schemas[id(ErrorAnswer)]}},
        }
    return responses


def _tidy(schema: dict[str, Any]) -> None:
    """Leave out what is of Python's world: titles that repeat names, indented descriptions."""
    schema.pop("title", None)
    if "description" in schema:
        schema["description"] = inspect.cleandoc(schema["description"])


def _say_limits(components: dict[str, Any], limits: RestLimits) -> None:
    """What is configured, and what msgspec has no word for."""
    dequeue = components["DequeueRequest"]["properties"]
    dequeue["max_messages"]["maximum"] = limits.batch_count
    dequeue["wait_seconds"]["maximum"] = limits.wait_ms / 1000
    for name in ("PublishRequest", "RoutedRequest"):
        components[name]["oneOf"] = [
            {"required": ["payload"], "properties": {"payload_base64": {"type": "null"}}},
            {"required": ["payload_base64"], "properties": {"payload_base64": {"type": "string"}, "payload": False}},
        ]
