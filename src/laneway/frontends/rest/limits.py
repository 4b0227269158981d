"""What the HTTP API bounds beyond HTTP itself: what one client may ask for in one request."""

from __future__ import annotations

from laneway.frontends.http.limits import HttpLimits


class RestLimits(HttpLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    batch_count: int = 1000  # messages or receipt handles in one request
    wait_ms: int = 20_000  # of one long poll
    peek_bytes: int = 4 * 1024 * 1024  # bodies in one page of peek; one message is always shown
    slow_count: int = 256  # administrative requests worked on at once, over all connections
