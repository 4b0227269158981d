"""What only HTTP can get wrong: its grammar, its limits, its paths."""

from __future__ import annotations

from laneway.errors import LanewayError


class HttpError(LanewayError):
    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        field: str | None = None,
        headers: bytes = b"",
        **details: object,
    ) -> None:
        super().__init__(message, field=field, **details)
        self.status = status
        self.code = code
        self.headers = headers  # whole lines


def malformed(message: str) -> HttpError:
    return HttpError(400, "malformed_request", message)
