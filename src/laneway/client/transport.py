"""Requests and answers: one connection pool, one exception, and repeating a request only where that is harmless."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # httpx takes a tenth of a second to import; a program that prints its --help need not wait for it
    import httpx

UNREACHABLE = "unreachable"
TIMED_OUT = "timed_out"
NOT_LANEWAY = "not_laneway"
TLS_FAILED = "tls_failed"

#: By what OpenSSL says.
_TLS_ADVICE = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not trusted here, or is another name's",
    "WRONG_VERSION_NUMBER": "it speaks plain HTTP there, so its address begins with http://",
    "CERTIFICATE_REQUIRED": "it wants to see a certificate of the client's",
}


class ClientError(Exception):
    """The server refused (its code, sentence and field), or could not be reached (status 0)."""

    def __init__(
        self,
        code: str,
        message: str,
        field: str | None = None,
        status: int = 0,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.status = status
        self.details = dict(details or {})

    @classmethod
    def from_answer(cls, error: Mapping[str, Any], status: int) -> ClientError:
        """From the `error` object that every refusal of the API carries."""
        details = {name: value for name, value in error.items() if name not in ("code", "message", "field")}
        return cls(str(error["code"]), str(error["message"]), error.get("field"), status, details)

    def as_dict(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.field is not None:
            shown["field"] = self.field
        return {"error": {**shown, **self.details}}


class ClientTls(NamedTuple):
    """What an https:// address needs beside itself, as PEM files: the authority that signed the server's certificate,
    if this machine does not know it, and a certificate of the client's own, if the server wants one."""

    ca: str | None = None
    cert: str | None = None
    cert_key: str | None = None  # None: it is in the same file

    def context(self) -> ssl.SSLContext:
        """ValueError if one of the files cannot be used."""
        file = self.ca
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                file = self.cert
                context.load_cert_chain(self.cert, self.cert_key)
        except OSError as error:
            raise ValueError(f"the certificate {file} cannot be used: {error.strerror or error}") from error
        return context


class Transport:
    def __init__(
        self,
        url: str,
        *,
        tls: ClientTls,
        key: str | None,
        user: str | None,
        password: str | None,
        timeout_seconds: float,
        attempts: int,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        import httpx

        if key is not None and user is not None:
            raise ValueError("give a key, or a user and a password, not both")
        self.url = url if "://" in url else f"http://{url}"
        self._timeout_seconds = timeout_seconds
        self._attempts = attempts
        self._sleep = sleep
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers={"authorization": f"Bearer {key}"} if key is not None else {},
                auth=(user, password or "") if user is not None else None,
                timeout=timeout_seconds,
                verify=tls.context() if self.url.startswith("https://") else True,
                trust_env=False,  # a proxy for the web has nothing to say about a queue on the next machine
                follow_redirects=False,
            )
        except httpx.InvalidURL as error:
            raise ValueError(f"{url!r} is no address of a server: {error}") from error
        if self._http.base_url.scheme not in ("http", "https") or not self._http.base_url.host:
            raise ValueError(f"{url!r} is no address of a server: it begins with http:// or https:// and names a host")

    def close(self) -> None:
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        content: bytes | None = None,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
        wait_seconds: float = 0,
    ) -> Any:
        """The decoded answer. `repeatable` says that sending the request twice does what sending it once does; left
        out, it is true of GET alone. `content` is a body that is not JSON. A connection that was never made is tried
        again in any case."""
        import httpx

        repeatable = method == "GET" if repeatable is None else repeatable
        request = self._http.build_request(
            method,
            path,
            json=body,
            content=content,
            params={name: value for name, value in (query or {}).items() if value is not None},  # type: ignore[misc]
            headers=headers,
            timeout=httpx.Timeout(self._timeout_seconds, read=self._timeout_seconds + wait_seconds),
        )
        for attempt in range(1, self._attempts + 1):
            try:
                return _decoded(self._http.send(request))
            except httpx.TransportError as error:
                was_sent = not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
                if attempt == self._attempts or (was_sent and not repeatable):
                    raise self._unreachable(error, was_sent) from error
            self._sleep(0.1 * 2 ** (attempt - 1))
        raise AssertionError("the last attempt returns or raises")

    def _unreachable(self, error: httpx.TransportError, was_sent: bool) -> ClientError:
        import httpx

        what = str(error) or type(error).__name__
        for sign, advice in _TLS_ADVICE.items():
            if sign in what:
                return ClientError(TLS_FAILED, f"no TLS with {self.url}: {advice}")
        if isinstance(error, httpx.TimeoutException) and was_sent:
            return ClientError(TIMED_OUT, f"{self.url} took the request but did not answer in time: {what}")
        if was_sent:
            return ClientError(UNREACHABLE, f"the connection to {self.url} broke before the answer came: {what}")
        return ClientError(UNREACHABLE, f"cannot reach a server at {self.url}: {what}")


def _decoded(response: httpx.Response) -> Any:
    if response.status_code == 204:
        return None
    try:
        answer = response.json()
    except ValueError:
        raise _foreign(response) from None
    if response.is_success:
        return answer
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict) or "code" not in error or "message" not in error:
        raise _foreign(response)
    raise ClientError.from_answer(error, response.status_code)


def _foreign(response: httpx.Response) -> ClientError:
    return ClientError(
        NOT_LANEWAY,
        f"{response.url} answered {response.status_code} in a way Laneway does not: is it the right address?",
        status=response.status_code,
    )
