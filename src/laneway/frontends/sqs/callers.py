"""Who asks: an account, from a region. Found out once, and again when anything about accounts has changed."""

from __future__ import annotations

from laneway.access import Access, Account
from laneway.errors import Forbidden, Unauthenticated
from laneway.frontends.http.guests import guest
from laneway.frontends.http.protocol import Call
from laneway.frontends.sqs.errors import SqsError
from laneway.frontends.sqs.names import Names
from laneway.frontends.sqs.signing import Credential, SigningKey, derive_key

_REMEMBERED = 1024


class Caller:
    """Never changed: what was found out about one, as what it may do, is forgotten when another takes its place."""

    __slots__ = ("access", "account", "names", "region", "vhost")

    def __init__(self, account: Account, region: str, access: Access, names: Names) -> None:
        self.account = account
        self.region = region
        self.vhost = names.vhost(region)
        self.access = access
        self.names = names


class Callers:
    def __init__(self, access: Access, names: Names) -> None:
        self._access = access
        self._names = names
        self._version = access.version
        self._signing: dict[str, tuple[Caller, SigningKey]] = {}  # by credential, once a signature was right
        self.found: tuple[str, tuple[Caller, SigningKey]] | None = None  # with its credential, not remembered yet
        self._guests: dict[str, Caller] = {}  # by region

    def signing(self, credential: Credential) -> tuple[Caller, SigningKey] | None:
        """Who has this access key, if it is known, and what they sign with."""
        if self._version != self._access.version:
            self._forget()
        known = self._signing.get(credential.text)
        self.found = None
        if known is None:
            found = self._access.signing_key(credential.access_key)
            if found is not None:
                account, secret = found
                caller = Caller(account, credential.region, self._access, self._names)
                known = caller, derive_key(secret, credential)
                self.found = credential.text, known
        return known

    def remember(self) -> None:
        """The signature of the one found last was right."""
        if self.found is not None:
            if len(self._signing) >= _REMEMBERED:
                self._signing.clear()
            self._signing[self.found[0]] = self.found[1]
            self.found = None

    def guest(self, call: Call, region: str) -> Caller | None:
        """Whoever may come without a key: guest, for one on this machine, while it is the only account. None: a key is
        needed."""
        try:
            account = guest(self._access, call)
        except Unauthenticated:
            return None
        except Forbidden as error:
            raise SqsError("AccessDenied", error.message) from None
        if self._version != self._access.version:
            self._forget()
        caller = self._guests.get(region)
        if caller is None:
            if len(self._guests) >= _REMEMBERED:
                self._guests.clear()
            caller = self._guests[region] = Caller(account, region, self._access, self._names)
        return caller

    def _forget(self) -> None:
        self._signing.clear()
        self._guests.clear()
        self._version = self._access.version
