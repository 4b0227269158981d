"""What every test shares: how hypothesis behaves on machines whose speed varies."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# A deadline per example measures the machine, not the code; pytest-timeout bounds each test as a whole.
settings.register_profile("laneway", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("laneway")


def pytest_configure() -> None:
    """A shell that starts the tests in the background has them ignore Ctrl-C, and so would every program they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
