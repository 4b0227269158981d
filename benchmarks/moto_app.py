"""moto's server as an application for uvicorn. The server that moto brings along closes every connection after one
answer, which would measure connecting; under uvicorn it does better."""

from __future__ import annotations

from moto.server import DomainDispatcherApplication, create_backend_app

app = DomainDispatcherApplication(create_backend_app)
