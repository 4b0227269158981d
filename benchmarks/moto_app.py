"""moto's server as an application for uvicorn. The server that moto brings along closes every connection after one
answer, which would measure connecting; under uvicorn it does better.

One thread answers, as moto's queues are not made for several: two that receive at once are given the same message, and
the handle that one of them holds is then unknown when it deletes. It is no slower for that: it is all Python."""

from __future__ import annotations

from moto.server import DomainDispatcherApplication, create_backend_app
from uvicorn.middleware.wsgi import WSGIMiddleware

app = WSGIMiddleware(DomainDispatcherApplication(create_backend_app), workers=1)
