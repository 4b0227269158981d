"""The bare Starlette echo: a POST of JSON, decoded and answered. It stores nothing and checks nothing."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def echo(request: Request) -> JSONResponse:
    return JSONResponse(await request.json(), status_code=201)


app = Starlette(routes=[Route(path, echo, methods=["POST"]) for path in ("/queues/bench/messages", "/")])
