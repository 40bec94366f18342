"""Pages with charts while a node is silent, in this process: the range in the URL, bands, events, sparklines."""

from __future__ import annotations

import asyncio
import gzip
import html
import json
import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from nsqadmin.cluster.merge import totals_of
from nsqadmin.cluster.model import (
    CLUSTER_SERIES,
    Activity,
    Health,
    Metric,
    Recording,
    Series,
    Silent,
    Snapshot,
    Span,
    TopicNode,
    channel_series,
    node_series,
    topic_series,
)
from nsqadmin.cluster.view import SavedView
from nsqadmin.options import Options
from tests.support.picture import NOW, channel, channel_node, client, node, snapshot, topic
from tests.support.process import needs_module

if TYPE_CHECKING:
    from collections.abc import MutableMapping


needs_module("starlette")
needs_module("jinja2")

TOPICS: Final = 50
PAGES: Final = ("/", "/topics/t0", "/topics/t0/c", "/nodes/n2:4151")


def depths(total: float, old: float) -> Series:
    """Return the twelve minutes of a topic of two nodes, the second of which is silent for the last four."""
    count, silent_from = 144, 96
    values = tuple(total + number % 7 for number in range(count))
    parts = tuple(old if number >= silent_from else 0.0 for number in range(count))
    return Series(
        end=NOW,
        step=5.0,
        values=dict.fromkeys(("depth", "incoming", "finished", "in_flight", "problems"), values),
        last_known={Metric.DEPTH: parts} if old else {},
        partial=tuple(part > 0 for part in parts),
        points=count,
    )


def recording(topics: int = TOPICS) -> Recording:
    names, silent = ("n1:4151", "n2:4151"), ("n2:4151",)
    drawn = tuple(
        topic(
            channel(
                *(channel_node(it, depth=50, clients=(client(it),)) for it in names), topic=f"t{number}", silent=silent
            ),
            name=f"t{number}",
            nodes=tuple(TopicNode(node=it) for it in names),
            silent=silent,
        )
        for number in range(topics)
    )
    picture: Snapshot = snapshot(
        *drawn,
        nodes=tuple(
            node(it, health=Health.DOWN if it in silent else Health.OK, answered_at=NOW - 240, depth=50) for it in names
        ),
        silent=(Silent(node="n2:4151", since=NOW - 240, answered_at=NOW - 245, depth=50),),
        totals=totals_of(drawn),
    )
    keys = [CLUSTER_SERIES, *(node_series(it) for it in names), *(topic_series(it.name) for it in drawn)]
    keys += [channel_series(it.name, "c") for it in drawn]
    activity = (
        Activity(at=NOW - 240, what="node_down", text="nsqd n2:4151 no longer answers", nodes=silent),
        Activity(at=NOW - 500, what="pause_channel", text="paused t0/c", topic="t0", channel="c", result="ok"),
        Activity(at=NOW - 500, what="pause_channel", text="paused t1/c", topic="t1", channel="c", result="ok"),
    )
    series = {f"{key}@{Span.MINUTES}": depths(100.0, 50.0) for key in keys}
    return Recording(snapshot=picture, series=series, activity=activity)


class Site:
    """nsqadmin's pages for a recording, without a server."""

    def __init__(self, shown: Recording) -> None:
        from nsqadmin.actions.audit import ActivityLog
        from nsqadmin.daemon import _app, _still_services
        from nsqadmin.http.config import Settings
        from nsqadmin.http.login import Access, read_policy

        options = Options(snapshot="it")
        policy = read_policy(options)
        access = Access(options, lambda: policy, {})
        services = _still_services(Settings(options), policy, access, ActivityLog(), SavedView(shown), ())
        self._app = _app(services)

    def get(self, target: str) -> tuple[str, int]:
        """Return the page, and its size when it is compressed."""
        path, _, query = target.partition("?")
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(b"host", b"127.0.0.1:4171"), (b"accept-encoding", b"gzip")],
            "client": ("127.0.0.1", 40000),
            "server": ("127.0.0.1", 4171),
        }
        asyncio.run(self._app(scope, receive, send))
        assert sent[0]["status"] == 200, target
        packed = b"".join(message.get("body", b"") for message in sent[1:])
        is_packed = (b"content-encoding", b"gzip") in [(name.lower(), value) for name, value in sent[0]["headers"]]
        return (gzip.decompress(packed) if is_packed else packed).decode(), len(packed)


@pytest.fixture(scope="module")
def admin() -> Site:
    return Site(recording())


def page(admin: Site, path: str) -> str:
    return admin.get(path)[0]


def drawn(text: str) -> list[dict[str, Any]]:
    """Return what scripts get of each chart."""
    return [json.loads(html.unescape(found)) for found in re.findall(r'data-chart="([^"]*)"', text)]


@pytest.mark.parametrize("path", PAGES)
def test_no_chart_falls_or_has_a_hole_because_a_node_is_silent(admin: Site, path: str) -> None:
    text = page(admin, path)
    counts = [line for chart in drawn(text) for line in chart["lines"] if line["kind"] == "count" and "old" in line]
    assert counts
    assert all(min(line["values"]) >= 100 for line in counts)
    assert {line["old"][-1] for line in counts} == {50}
    assert re.search(r'class="key hatched"><i></i><span>last known</span> <b>50</b>', text)
    assert len(re.findall(r'<path class="band" d="M', text)) >= 1


def test_a_rate_says_that_it_is_a_lower_bound(admin: Site) -> None:
    text = page(admin, "/topics/t0/c")
    assert "<span>at least</span>" in text
    assert "at least 10" in text  # in the table for people who can't see the chart


def test_one_range_in_the_url_is_that_of_every_chart(admin: Site) -> None:
    begin, end = "2023-11-14T22:05:00Z", "2023-11-14T22:08:00Z"
    text = page(admin, f"/topics/t0/c?from={begin}&to={end}")
    charts = drawn(text)
    assert len(charts) == 4
    assert {(it["begin"], it["end"], it["live"]) for it in charts} == {(1_699_999_500, 1_699_999_680, False)}
    assert {len(it["lines"][0]["values"]) for it in charts if it["lines"][0]["values"]} == {37}
    assert f'<time datetime="{begin}">' in text
    assert '<a class="button small" href="/topics/t0/c">Live</a>' in text
    assert 'name="from" value="2023-11-14T22:05:00"' in text  # the form works without a script


@pytest.mark.parametrize(
    "query", ["span=9y", "from=x&to=y", "from=2023-11-14T22:05:00Z", "from=9999-12-31&to=9999-12-31"]
)
def test_a_range_that_is_none_is_as_if_it_was_not_there(admin: Site, query: str) -> None:
    assert all(chart["live"] for chart in drawn(page(admin, f"/?{query}"))) or "9999" in query


def test_a_time_without_samples_says_that_it_is_unknown(admin: Site) -> None:
    text = page(admin, "/topics/t0/c?from=2023-11-01T00:00:00Z&to=2023-11-01T01:00:00Z")
    assert text.count(">Unknown: no sample of this time is kept<") == 4


def test_ticks_are_times_and_the_axis_has_short_numbers(admin: Site) -> None:
    texts = re.findall(r'text-anchor="\w+">([^<]*)</text>', page(admin, "/topics/t0/c"))
    assert {"22:05", "22:10"} <= set(texts)
    assert not any(text.startswith("−") or text == "now" for text in texts)


def test_events_are_marks_and_a_list(admin: Site) -> None:
    text = page(admin, "/topics/t0/c")
    listed = re.findall(r"<li><span class=\"at\">.*?</span><span>(.*?)</span></li>", text)
    assert [re.sub("<wbr>", "", it) for it in listed] == ["nsqd n2:4151 no longer answers", "paused t0/c"]
    marks = json.loads(html.unescape(re.findall(r'data-events="([^"]*)"', text)[0]))
    assert [tip for _, tip in marks] == ["paused t0/c", "nsqd n2:4151 no longer answers"]
    assert text.count('<path class="event"') == 4
    assert "3 events in this time" in page(admin, "/")
    assert "1 event in this time" in page(admin, "/nodes/n2:4151")


def test_sparklines_have_their_numbers_as_words_and_no_ids(admin: Site) -> None:
    for path, label in (
        ("/topics", "from 100 to 103 in 12 min, steady"),
        ("/topics", "from 200 to 206 in 12 min, steady"),  # a topic with its channel
        ("/consumers?group=none", "from 100/s to 103/s in 12 min, steady"),
        ("/consumers", "from 5,000/s to 5,150/s in 12 min, steady"),  # of all channels
    ):
        sparks = re.findall(r'<svg class="spark".*?</svg>', page(admin, path))
        assert any(f'aria-label="{label}"' in it for it in sparks), path
        assert all(it.count("<path") == 1 and " id=" not in it and len(it) < 400 for it in sparks)


def test_fifty_topics_with_sparklines_stay_light(admin: Site) -> None:
    text, packed = admin.get("/topics")
    assert text.count('class="spark"') == 2 * TOPICS
    packed += sum(admin.get(it)[1] for it in re.findall(r'(?:src|href)="(/static/[^"]*)"', text))
    assert packed <= 60_000


def test_the_strip_of_charts_is_before_the_cards(admin: Site) -> None:
    text = page(admin, "/")
    assert re.findall(r'<figcaption><b title="([^"]*)"', text) == ["Waiting", "In and out", "Problems", "In flight"]
    assert text.index("data-chart") < text.index('id="attention"')
