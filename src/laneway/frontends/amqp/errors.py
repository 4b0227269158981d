"""What ends a channel or a connection: reply codes, RabbitMQ's texts, and how Laneway's errors become one of them."""

from __future__ import annotations

from laneway.errors import (
    Conflict,
    DiskFull,
    Forbidden,
    InvalidInput,
    LanewayError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unauthenticated,
    Unavailable,
)

#: These end a channel …
CHANNEL_CODES = {
    311: "CONTENT_TOO_LARGE",
    313: "NO_CONSUMERS",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
}
#: … and these the connection.
CONNECTION_CODES = {
    320: "CONNECTION_FORCED",
    402: "INVALID_PATH",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}
#: The disk is full or does not keep up: clients wait, and are not told off.
NOT_NOW = (DiskFull, Unavailable)


def may_be_sent_again(answer: object) -> bool:
    """Whether a publish was refused for now. One whose outcome is not known is its client's to repeat: it would be
    there twice."""
    return isinstance(answer, NOT_NOW) and not isinstance(answer, OutcomeUnknown)


_NAMES = CHANNEL_CODES | CONNECTION_CODES


class AmqpError(Exception):
    """Ends its channel, or its connection if the code or the caller says so."""

    def __init__(
        self, code: int, explanation: str, *, ends_connection: bool = False, method: int | None = None
    ) -> None:
        super().__init__(explanation)
        self.code = code
        self.explanation = explanation
        self.ends_connection = ends_connection or code in CONNECTION_CODES
        self.method = method  # class << 16 | method, where it is not the one that is being carried out

    @property
    def name(self) -> str:
        return _NAMES.get(self.code, "error").lower()

    @property
    def is_servers(self) -> bool:
        """Whether it is no mistake of the client's."""
        return self.code in (506, 541)

    @property
    def text(self) -> str:
        """At most what a short string holds, cut as RabbitMQ cuts."""
        raw = f"{_NAMES[self.code]} - {self.explanation}".encode("utf-8", "surrogateescape")
        return (raw if len(raw) <= 255 else raw[:252] + b"...").decode("utf-8", "ignore")


def access_refused(explanation: str) -> AmqpError:
    return AmqpError(403, explanation)


def not_found(kind: str, name: str, vhost: str) -> AmqpError:
    return AmqpError(404, f"no {kind} '{name}' in vhost '{vhost}'")


def precondition_failed(explanation: str) -> AmqpError:
    return AmqpError(406, explanation)


def not_allowed(explanation: str) -> AmqpError:
    return AmqpError(530, explanation)


def not_implemented(explanation: str) -> AmqpError:
    return AmqpError(540, explanation)


def amqp_error(error: LanewayError) -> AmqpError:
    """Where no method of AMQP knows better: Laneway's own sentence under the nearest code."""
    if isinstance(error, Unavailable):
        return AmqpError(506, error.message)
    for kind, code in (
        (Unauthenticated, 403),
        (Forbidden, 403),
        (NotFound, 404),
        (InvalidInput, 406),
        (Conflict, 406),
        (Refused, 406),
    ):
        if isinstance(error, kind):
            return AmqpError(code, error.message)
    return AmqpError(541, error.message)


def resource(kind: str, name: str, vhost: str) -> str:
    """As RabbitMQ names a queue or an exchange in its texts."""
    return f"{kind} '{name}' in vhost '{vhost}'"
