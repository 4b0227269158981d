"""The page as a browser reads it: whole, self-contained, escaped, and sensible with nothing or too much to tell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from laneway.pipeline.report.page import CONTENTS, page
from tests.pipeline import report_tables as made

NOW = datetime(2026, 11, 16, 19, 0, tzinfo=UTC)
VOID = {"meta", "br", "hr", "link", "img", "input"}

Tables = dict[str, list[dict[str, Any]]]


class Element:
    def __init__(self, name: str, attributes: dict[str, str | None]) -> None:
        self.name = name
        self.attributes = attributes
        self.parts: list[Element | str] = []

    @property
    def children(self) -> list[Element]:
        return [part for part in self.parts if isinstance(part, Element)]

    def walk(self) -> Iterator[Element]:
        yield self
        for child in self.children:
            yield from child.walk()

    def all(self, name: str) -> list[Element]:
        return [one for one in self.walk() if one.name == name]

    @property
    def text(self) -> str:
        """Of this element and those in it, one space between pieces."""
        return re.sub(r"\s+", " ", " ".join(one if isinstance(one, str) else one.text for one in self.parts)).strip()


class Reader(HTMLParser):
    """Builds the tree, and fails where an element is not closed in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len(dict(attrs)), f"an attribute twice in {tag}"
        element = Element(tag, dict(attrs))
        self._open[-1].parts.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].parts.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].name == tag, f"</{tag}> closes <{self._open[-1].name}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].parts.append(data)


def read(text: str) -> Element:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert len(reader._open) == 1, f"not closed: {[one.name for one in reader._open[1:]]}"
    return reader.root


def shown(tables: Tables, **given: Any) -> Element:
    text = page(tables, made_at=NOW, **given)
    text.encode()  # nothing in it that cannot be written
    tree = read(text)
    check_that_it_stands_alone(tree)
    check_that_all_can_read_it(tree)
    return tree


def check_that_it_stands_alone(tree: Element) -> None:
    for element in tree.walk():
        assert element.name not in (
            "script",
            "link",
            "img",
            "iframe",
            "object",
            "embed",
            "base",
            "form",
            "image",
            "use",
        )
        for name, value in element.attributes.items():
            assert not name.startswith("on") and name not in ("src", "srcset", "style", "action")
            if "href" in name:
                assert value is not None and value.startswith("#")
    [style] = tree.all("style")
    assert "url(" not in style.text and "@import" not in style.text
    policy = [one for one in tree.all("meta") if one.attributes.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in (policy[0].attributes["content"] or "")


def check_that_all_can_read_it(tree: Element) -> None:
    ids = [one.attributes["id"] for one in tree.walk() if "id" in one.attributes]
    assert len(ids) == len(set(ids))
    for element in tree.all("a"):
        assert (element.attributes["href"] or "").removeprefix("#") in ids
    for table in tree.all("table"):
        assert table.all("caption")[0].text
        heads = table.all("thead")[0].all("th")
        assert all(head.attributes.get("scope") == "col" for head in heads)
        for line in table.all("tbody")[0].all("tr"):
            assert len(line.children) == len(heads)
            assert any(cell.attributes.get("scope") == "row" for cell in line.children)
    for drawing in (one for one in tree.all("svg") if "chart" in (one.attributes.get("class") or "")):
        assert drawing.attributes["role"] == "img" and drawing.attributes["aria-label"]
    assert tree.all("html")[0].attributes["lang"] == "en"
    assert [one.attributes["charset"] for one in tree.all("meta") if "charset" in one.attributes] == ["utf-8"]


def section(tree: Element, key: str) -> Element:
    [found] = [one for one in tree.all("section") if one.attributes["id"] == key]
    return found


def test_the_page_tells_every_table() -> None:
    tree = shown(made.tables(), source="./data", title="A day")
    assert tree.all("h1")[0].text == "A day"
    assert "2026-11-16 18:00:00 to 18:01:34 UTC · read from ./data" in tree.text
    assert [one.attributes["id"] for one in tree.all("section")] == list(CONTENTS)
    assert "not in the warehouse yet" not in tree.text
    # One line for each queue in both charts, and one for each in the charts of its tier.
    assert len(section(tree, "traffic").all("polyline")) >= 10
    assert "fraud-checks critical 5 s 16 ms 800 ms 9.2 s 14.5 s" in section(tree, "waiting").text
    assert "payments critical 89.8 % 4,000 410 0 0 102×" in section(tree, "objectives").text
    assert "orders normal 100 % 12 k 0 0 0 0 %" in section(tree, "objectives").text
    hot = section(tree, "hot").text
    assert "hooli-001 payments 1,240 8 % 13.6" in hot and "(none named)" in hot
    assert "2 3.90× 29.2 k 324 hot orders" in hot and "1 0.40× 3,000 33.2 fine orders" in hot
    dead = section(tree, "deadletters").text
    assert "emails 304 44 260" in dead
    assert "31 30 payments rejected InvalidAmount: <text> is not a decimal number (invoice INV-<n>)" in dead
    assert 'InvalidAmount: "12,50" is not a decimal number (invoice INV-4711)' in dead
    assert "01JCT3X5W8-000000000002" in dead
    capacity = section(tree, "capacity").text
    assert "payments 61.5/s 55.2/s 3 2 1 0 +125 100 k exceeded now" in capacity
    assert "soon 2026-11-16 21:30" in capacity and "later 2026-11-20 12:00" in capacity
    assert "no limit" in capacity and "not in sight" in capacity
    assert capacity.index("payments") < capacity.index("emails") < capacity.index("analytics"), "the soonest first"


def test_outages_are_shaded_and_listed() -> None:
    """Payments, orders and emails had no consumers from second 44 to 60 (tests/pipeline/report_tables.py)."""
    traffic = section(shown(made.tables()), "traffic")
    shaded = [one for one in traffic.all("rect") if one.attributes.get("class") == "outage"]
    assert [one.text for one in shaded] == ["nothing received: emails, orders, payments"] * 2, "one in each chart"
    assert shaded[0].attributes["x"] == "46.81%" and shaded[0].attributes["width"] == "17.02%"
    assert "payments 2026-11-16 18:00:44 2026-11-16 18:01:00 16 s" in traffic.text
    assert "analytics 2026" not in traffic.text
    waiting = section(shown(made.tables()), "waiting")
    assert [one for one in waiting.all("rect") if one.attributes.get("class") == "outage"]


def test_a_pause_is_no_outage_and_one_that_lasts_says_so() -> None:
    tables = made.tables()
    orders = [row for row in tables["traffic"] if row["queue"] == "orders"]
    for at, one in enumerate(orders):
        one.update(delivered=0 if at in (3, 4) or at > 40 else 5, unreceived=7)
    tables["traffic"] = orders
    traffic = section(shown(tables), "traffic").text
    assert traffic.count("orders 2026") == 1 and "orders 2026-11-16 18:01:22 still 14 s 7" in traffic


def test_nothing_is_extrapolated_from_two_minutes() -> None:
    tables = made.tables()
    for one in tables["capacity_queues"]:
        one.update(backlog_per_hour=None, exceeds_in_hours=None, exceeds_at=None, backlog_limit=100)
    tree = shown(tables)
    objectives = section(tree, "objectives").text
    assert "this history is too short" in objectives and "budget left" not in objectives and " h " not in objectives
    assert section(tree, "capacity").text.count("history too short") == 5


def test_a_history_as_long_as_the_window_tells_what_is_left_of_the_budget() -> None:
    tables = made.tables()
    tables["traffic"] = [
        {**row, "time": made.START + days * timedelta(days=1), "step_seconds": 86_400}
        for row in made.traffic(steps=1)
        for days in range(31)
    ]
    text = section(shown(tables), "objectives").text
    assert "payments critical 89.8 % 4,000 410 0 0 102× overspent 3 d 1 h" in text
    assert "orders normal 100 % 12 k 0 0 0 0 % 43 min 12 s" in text


def test_only_short_cells_refuse_to_wrap_so_that_wide_tables_fit() -> None:
    [style] = shown(made.tables()).all("style")
    rules = re.findall(r"([^{}]+) \{([^{}]*)\}", style.text)
    rigid = [name.strip() for name, what in rules if "nowrap" in what]
    assert rigid == [".verdict b", "td.n", ".badge"]


def test_the_first_figures_are_sums_over_queues_that_were_used() -> None:
    tables = made.tables()
    idle = {"queue": "idle", "measured": 0, "late": 0, "missed": 0, "overdue": 0, "within_share": None}
    tables["slo_queues"].append({**tables["slo_queues"][0], **idle})
    [tiles] = [one for one in shown(tables).all("ul") if one.attributes.get("class") == "tiles"]
    published = sum(row["published"] for row in tables["traffic"])
    assert 17_250 <= published < 17_350
    late, measured = 410 + 130 + 60, 4_000 * 15 + 60
    assert [one.text for one in tiles.children] == [
        "17.3 k messages published",
        f"{sum(row['acked'] for row in tables['traffic']) / 1000:.3g} k acked",
        f"{sum(row['redelivered'] for row in tables['traffic'])} deliveries again",
        f"{sum(row['died'] for row in tables['traffic'])} dead letters",
        f"{(1 - late / measured) * 100:.1f} %".replace(".0 %", " %") + " received in time",
        "2 of 5 queues over their error budget",
    ]


def test_the_verdict_comes_first() -> None:
    tree = shown(made.tables())
    assert "✓ Nothing was lost" in tree.all("header")[0].text
    assert "182 k events, commits 1 to 5,231" in tree.text
    assert "None." in section(tree, "audit").text

    found = {**made.tables(), "audit_verdict": made.audit_verdict(1), "audit_violations": made.violations()}
    tree = shown(found)
    assert "✗ 1 violation" in tree.all("header")[0].text and "Nothing was lost" not in tree.text
    assert (
        "812 2026-11-16 18:00:00 acked twice orders 01JCT3X5W8-000000002393 acked again" in section(tree, "audit").text
    )

    half = {**made.tables(), "audit_verdict": [{**made.audit_verdict()[0], "is_whole": False}]}
    assert "no longer in the history" in shown(half).text


def test_tables_that_are_missing_are_named_with_the_command_that_makes_them() -> None:
    tree = shown({})
    assert "Not audited" in tree.text and "no traffic yet" in tree.text
    for job in ("report", "slo", "hotkeys", "deadletters", "capacity", "audit"):
        assert f"laneway pipeline run {job}" in tree.text
    assert tree.all("table") == []


def test_empty_tables_say_so() -> None:
    tree = shown({name: [] for name in made.tables()})
    for words in ("Nothing was published", "No message was delivered", "Nothing died", "There are no queues", "None."):
        assert words in tree.text
    assert tree.all("polyline") == []


HOSTILE = "</title></style><script>alert('\"1')</script><img src=x onerror=alert(2)>&amp;\u202e\x00\x1b[31m\ud800"


def test_hostile_names_and_details_stay_text() -> None:
    tables: Tables = {}
    texts = ("queue", "vhost", "tenant", "key", "signature", "example", "words", "message_id", "type", "reason", "tier")
    for name, rows in made.tables().items():
        tables[name] = [
            {key: HOSTILE if key in texts or key.startswith("top_") else value for key, value in row.items()}
            for row in rows
        ]
    tables["deadletters"][0]["sample_message_ids"] = [HOSTILE]
    tables["audit_violations"] = [{**made.violations()[0], "words": HOSTILE, "queue": HOSTILE, "type": HOSTILE}]
    tree = shown(tables, source=HOSTILE, title=HOSTILE)
    assert tree.all("script") == [] and tree.all("img") == []
    assert len(tree.all("style")) == 1 and len(tree.all("h1")) == 1
    seen = tree.text
    assert "<script>alert('\"1')</script>" in seen and "&amp;" in seen
    assert "\\u202e\\x00\\x1b[31m\\ud800" in seen and "\u202e" not in seen


def test_numbers_of_any_size_fit() -> None:
    tables = made.tables()
    for row in tables["traffic"]:
        row.update(published=2**62, waiting=2**63 - 1, wait_p95_ms=1e15)
    for row in tables["slo_queues"]:
        row.update(measured=2**62, late=2**61, wait_max_ms=2**53, wait_p50_ms=0, budget_left_hours=-1e12)
    for row in tables["capacity_queues"]:
        row.update(backlog=2**63 - 1, exceeds_in_hours=0.001, consumer_per_second=1e-9, consumers_needed=2**60)
    tree = shown(tables)
    assert not re.search(r"\b(nan|inf)\b", tree.all("body")[0].text)
    points = [
        float(n) for one in tree.all("polyline") for n in re.findall(r"[0-9.e+-]+", one.attributes["points"] or "")
    ]
    assert points and all(0 <= value <= 1000 for value in points)


def test_values_that_are_not_known_are_dashes() -> None:
    tables = made.tables()
    for row in tables["slo_queues"]:
        row.update(dict.fromkeys(("wait_p50_ms", "wait_p95_ms", "wait_p99_ms", "wait_max_ms", "within_share")))
        row.update(objective_seconds=None, budget_left_hours=None)
    for row in tables["capacity_queues"]:
        row.update(dict.fromkeys(("consumer_per_second", "consumers_needed", "backlog_per_hour", "backlog_limit")))
        row.update(dict.fromkeys(("exceeds_in_hours", "exceeds_at")))
    tree = shown(tables)
    assert "payments critical – – – – –" in section(tree, "waiting").text
    assert "payments 61.5/s – 3 – 1 0 – – no limit" in section(tree, "capacity").text


def test_many_queues_share_a_line_and_long_lists_are_cut() -> None:
    tables = made.tables()
    first = [row for row in tables["traffic"] if row["queue"] == "orders"][:3]
    tables["traffic"] = [{**row, "queue": f"q{n:04d}", "published": n} for n in range(500) for row in first]
    tables["deadletters"] = [{**made.deadletters()[0], "signature": f"E{n}"} for n in range(60)]
    tables["audit_violations"] = made.violations() * 70
    tables["hotkeys_tenants"] = [{**made.hotkeys_tenants()[0], "tenant": f"t{n}"} for n in range(40)]
    tree = shown(tables)
    traffic = section(tree, "traffic")
    assert "all others (493)" in traffic.text and len(traffic.all("polyline")) == 16
    assert "… and 35 more signatures" in tree.text
    assert "… and 20 more violations" in tree.text
    assert "… and 28 more tenants" in tree.text
    assert len(page(tables, made_at=NOW)) < 2_000_000


def test_virtual_hosts_are_named_where_there_are_others() -> None:
    tables = made.tables()
    tables["slo_queues"] = [{**made.slo_queues()[0], "vhost": "shop"}, made.slo_queues()[1]]
    text = section(shown(tables), "waiting").text
    assert "shop · payments" in text and "/ · " not in text


@pytest.mark.parametrize(
    ("hours", "words"),
    [(0.01, "18:00:00 to 18:00:36 UTC"), (5, "2026-11-16 18:00 to 2026-11-16 23:00 UTC")],
)
def test_the_head_says_when(hours: float, words: str) -> None:
    rows = made.traffic(steps=2)
    tables = {"traffic": [{**row, "time": made.START + at * timedelta(hours=hours)} for row in rows for at in (0, 1)]}
    assert words in shown(tables).all("header")[0].text


def test_the_style_travels_with_the_package() -> None:
    assert "prefers-color-scheme: dark" in page({}, made_at=NOW) and "max-width: 640px" in page({}, made_at=NOW)
