"""Queue names, URLs and ARNs, and the virtual host that a region's queues live in."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

import msgspec

from laneway.errors import ConfigInvalid
from laneway.frontends.sqs.errors import SqsError, invalid, no_such_queue

FIFO_SUFFIX = ".fifo"
DEFAULT_VHOST = "/"

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_FIFO_NAME = re.compile(r"[A-Za-z0-9_-]{1,75}\.fifo")
_URL = re.compile(r"(?:https?://[^/]+)?/(?P<account>[0-9]{12})/(?P<name>[^/]+)/?")
_ARN = re.compile(r"arn:[a-z-]+:sqs:(?P<region>[^:]*):(?P<account>[0-9]{12}):(?P<name>.+)")
_REMEMBERED_URLS = 10_000
REMEMBERED_URL_CHARS = 1000  # longer ones rarely come twice
_REGION = re.compile(r"[a-z0-9-]{1,40}")


class SqsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is set up about SQS for a node."""

    account_id: str = "000000000000"
    region: str = "us-east-1"  # its queues are those of the virtual host "/"
    waiting_periods: bool = True  # 60 s: after a deletion, between purges, until another scope counts

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9]{12}", self.account_id):
            raise ConfigInvalid(f"sqs_account_id is twelve digits, not {self.account_id!r}", field="sqs_account_id")
        if not _REGION.fullmatch(self.region):
            raise ConfigInvalid(f"sqs_region is a name as us-east-1, not {self.region!r}", field="sqs_region")


def check_region(region: str) -> str:
    if not _REGION.fullmatch(region):
        raise SqsError("SignatureDoesNotMatch", f"Credential should be scoped to a valid region, not {region[:80]!r}.")
    return region


class Names:
    """URLs and ARNs of one account."""

    def __init__(self, options: SqsOptions) -> None:
        self.account_id = options.account_id
        self.region = options.region
        self._known: dict[str, str] = {}  # URL -> name, of those that came lately

    def vhost(self, region: str) -> str:
        """Regions are kept apart: each has its own virtual host, and the configured one the default."""
        return DEFAULT_VHOST if region == self.region else region

    def url(self, base: str, name: str) -> str:
        return f"{base}/{self.account_id}/{quote(name, safe='')}"

    def arn(self, region: str, name: str) -> str:
        return f"arn:aws:sqs:{region}:{self.account_id}:{name}"

    def queue_of_url(self, url: str) -> str:
        """The name in a queue's URL, whatever host it names; a bare name is taken as it is."""
        name = self._known.get(url)
        if name is None:
            name = self._read_url(url)
            if len(url) <= REMEMBERED_URL_CHARS:
                if len(self._known) >= _REMEMBERED_URLS:
                    self._known.clear()
                self._known[url] = name
        return name

    def _read_url(self, url: str) -> str:
        if "/" not in url:
            if not url:
                raise no_such_queue()
            return url
        found = _URL.fullmatch(url)
        if found is None:
            raise SqsError("InvalidAddress", f"The address {url} is not valid for this endpoint.")
        if found["account"] != self.account_id:
            raise no_such_queue()
        return unquote(found["name"])

    def queue_of_arn(self, arn: str, region: str) -> str | None:
        """The name in an ARN of this account and region; None if it is another's, or no ARN."""
        found = _ARN.fullmatch(arn)
        if found is None or found["account"] != self.account_id or found["region"] != region:
            return None
        return found["name"]


def is_arn(text: str) -> bool:
    """Whether it has the form of an ARN, whatever it names."""
    return text.count(":") >= 5 and text.startswith("arn:")


def check_new_name(name: str, is_fifo: bool) -> str:
    if is_fifo:
        if not _FIFO_NAME.fullmatch(name):
            raise invalid(
                "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
                "must end with .fifo suffix and be 1 to 80 in length"
            )
    elif not _NAME.fullmatch(name):
        raise invalid("Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")
    return name


def is_fifo(name: str) -> bool:
    return name.endswith(FIFO_SUFFIX)
