"""What the page shows is what happens; and it has a line for every endpoint that is served."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from laneway.frontends.management.api import parts_of
from laneway.frontends.management.routing import routes_of
from laneway.frontends.management.scope import Scope

PAGE = (Path(__file__).parents[2] / "docs" / "management-api.md").read_text()


@pytest.mark.differs
def test_the_commands_of_the_page_say_what_it_says(admin: Callable[..., str]) -> None:
    block = next(
        block for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.M | re.S) if "rabbitmqadmin" in block
    )
    ran = 0
    for command, said in re.findall(r"^\$ rabbitmqadmin (.*)\n((?:(?!\$ ).*\n)*)", block, re.M):
        words = command.split()
        if words[:2] == ["list", "queues"]:
            words += ["name", "messages"]
            told = admin(*words)
            assert all(line in told.replace(" ", "") for line in said.replace(" ", "").splitlines() if "orders" in line)
        else:
            assert admin(*words) == said
        ran += 1
    assert ran == 3
    admin("delete", "queue", "name=orders")


def test_every_endpoint_is_on_the_page() -> None:
    """By each of its words: the page shortens paths."""
    table = PAGE[PAGE.index("## Every endpoint") : PAGE.index("## Users and permissions")]
    scope = Scope(SimpleNamespace(limits=None), None)  # type: ignore[arg-type]
    routes = [route for part in parts_of(scope, None, None) for route in routes_of(part)]  # type: ignore[arg-type]
    assert len(routes) > 100
    missing = {
        f"{route.method} {route.pattern}"
        for route in routes
        for at, word in enumerate(route.pattern.strip("/").split("/"))
        if not word.startswith("{") and (f"/api/{word}" if at == 0 else f"/{word}") not in table
    }
    assert missing == set()
