"""Sizes of slabs, chunks and ticks made so small that a short history crosses all their edges."""

from __future__ import annotations

import sys

import pytest

SLAB_BITS = 3
SMALL: dict[str, object] = {
    "SLAB_BITS": SLAB_BITS,
    "SLAB_ROWS": 1 << SLAB_BITS,
    "SLAB_MASK": (1 << SLAB_BITS) - 1,
    "_ZEROS_8": bytes(8 << SLAB_BITS),
    "CHUNK_ROWS": 5,
    "STALE_SLACK": 2,
    "TICK_MESSAGES": 3,
    "SLABS_PER_CHUNK": 2,
    "MAX_DEATHS": 4,
    "MAX_LEASE_BYTES": 400,
    "STALE_OFFERS": 2,
    "STALE_HEADS": 2,
    "NOISY_LEASES": 2,
    "NOISY_PERCENT": 30,
}


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Modules import these names, so each is replaced wherever it is known."""
    modules = [m for name, m in sys.modules.items() if name.startswith(("laneway.core.", "tests.core."))]
    replaced = set()
    for module in modules:
        if module.__name__ == __name__:
            continue
        for name, value in SMALL.items():
            if hasattr(module, name):
                patch.setattr(module, name, value)
                replaced.add(name)
    assert replaced == set(SMALL), f"no longer known: {set(SMALL) - replaced}"


@pytest.fixture(params=["usual sizes", "small sizes"])
def either_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "small sizes":
        shrink(monkeypatch)
    return str(request.param)


@pytest.fixture
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
