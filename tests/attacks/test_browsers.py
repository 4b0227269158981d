"""A page of another site must not act here with what the browser adds by itself."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.attacks.whole_node import WholeNode

CROSS_SITE = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},  # another program on the same machine
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeNode]:
    with WholeNode(tmp_path_factory.mktemp("node")) as node:
        node.new_queue("work")
        yield node


@pytest.mark.parametrize("headers", CROSS_SITE)
def test_a_password_that_the_browser_remembers_is_of_no_use_to_another_site(
    node: WholeNode, headers: dict[str, str]
) -> None:
    with node.http(headers=headers) as root:
        for answer in (
            root.post("/queues/work/purge"),
            root.post("/queues/work/messages", content=b"x", headers={"Content-Type": "text/plain"}),
            root.get("/queues/work/get"),  # which an image can ask for
            root.put("/accounts/evil", json={"password": "x", "roles": ["admin"]}),
        ):
            assert answer.status_code == 403, answer.text
            assert answer.json()["error"]["field"] in ("Origin", "Sec-Fetch-Site")
    with node.http() as root:
        assert root.get("/accounts/evil").status_code == 404


@pytest.mark.parametrize("password", ["wrong", "secret"])
def test_another_site_does_not_learn_whether_a_password_is_right(node: WholeNode, password: str) -> None:
    with node.http("root", password, headers={"Origin": "https://evil.example"}) as http:
        assert http.get("/queues").status_code == 403


def test_a_page_of_this_server_works(node: WholeNode) -> None:
    for headers in ({"Origin": node.url}, {"Origin": node.url, "Sec-Fetch-Site": "same-origin"}):
        with node.http(headers=headers) as root:
            assert root.get("/queues").status_code == 200
            assert root.post("/queues/work/purge").status_code == 200


def test_a_page_of_this_server_works_behind_a_proxy_that_names_another_host(node: WholeNode) -> None:
    """The browser knows that the page is of the same site, whatever the proxy makes of the Host."""
    headers = {"Origin": "https://queue.example", "Sec-Fetch-Site": "same-origin"}
    with node.http(headers=headers) as root:
        assert root.post("/queues/work/purge").status_code == 200


def test_a_request_that_is_typed_into_the_address_bar_works(node: WholeNode) -> None:
    with node.http(headers={"Sec-Fetch-Site": "none"}) as root:
        assert root.get("/queues").status_code == 200


@pytest.mark.parametrize("headers", CROSS_SITE)
def test_the_description_of_the_api_and_health_are_for_every_page(node: WholeNode, headers: dict[str, str]) -> None:
    for path in ("/openapi.json", "/healthz", "/readyz", "/"):
        assert httpx.get(node.url + path, headers=headers).status_code == 200


@pytest.mark.parametrize("headers", CROSS_SITE)
def test_a_page_that_knows_a_key_may_use_it(node: WholeNode, headers: dict[str, str]) -> None:
    """No browser adds that by itself."""
    _, key = node.key("root")
    answer = httpx.get(f"{node.url}/queues", headers={"Authorization": f"Bearer {key}", **headers})
    assert answer.status_code == 200


def test_a_page_whose_name_was_bound_to_this_machine_cannot_use_the_password_of_guest(node: WholeNode) -> None:
    """To such a page this server is its own site, so it may add what it likes, and that password everybody knows."""
    headers = {"Host": "evil.example", "Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}
    with node.http("guest", "guest", headers=headers) as http:
        answer = http.get("/accounts")
        assert (answer.status_code, answer.json()["error"]["field"]) == (403, "Host")
    with node.http("guest", "guest") as http:
        assert http.get("/accounts").status_code == 200
    with node.http(headers={"Host": "queue.example"}) as root:
        assert root.get("/accounts").status_code == 200
