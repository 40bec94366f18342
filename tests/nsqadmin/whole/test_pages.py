"""nsqadmin's pages over HTTP: how soon the first byte of a very long list arrives, and the headers.

Run with `pytest -rP` to see the figures.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lateness import queue_seconds
from tests.support.picture import channel, channel_node, snapshot, topic
from tests.support.process import Nsqadmin, needs_module

needs_module("starlette")
needs_module("jinja2")


TOPICS, CHANNELS = 2000, 5
PROMISED = 0.3  # seconds to the first byte, on an idle machine
PATIENCE = 5  # times as long on a slow machine


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqadmin]:
    """Run nsqadmin with an nsqd that has 10,000 channels."""
    file = tmp_path_factory.mktemp("snapshot") / "large.json"
    file.write_text(recorded())
    with Nsqadmin(f"snapshot={file}") as it:
        yield it
        assert "Traceback" not in it.log


def recorded() -> str:
    """Return the file of a cluster whose topics differ in their names and depths, as text: encoding them takes 2 s."""
    from nsqadmin.cluster.model import Recording
    from nsqadmin.cluster.recording import encode, to_json

    depths = [111_110 + number for number in range(CHANNELS)]
    one = topic(
        *(
            channel(channel_node(depth=depth), topic="topic-0000", name=f"channel-{number}")
            for number, depth in enumerate(depths)
        ),
        name="topic-0000",
    )
    text = json.dumps(to_json(one), separators=(",", ":"))
    before, _, after = encode(Recording(snapshot=snapshot(one))).decode().partition(text)
    assert after
    topics = []
    for at in range(TOPICS):
        its = text.replace("topic-0000", f"topic-{at:04}")
        for number, depth in enumerate(depths):
            its = its.replace(str(depth), str(at * number % 977))
        topics.append(its)
    return f"{before}{','.join(topics)}{after}"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/topics",
        "/topics?sort=-depth",
        "/topics?filter=depth%3E900&sort=-net",
        "/topics/topic-1000",
        "/jump?q=topic-19",
    ],
)
def test_ten_thousand_channels_are_no_reason_to_wait(admin: Nsqadmin, path: str) -> None:
    took: list[float] = []
    while not took or (min(took) >= PROMISED * PATIENCE and len(took) < 5):
        took.append(first_byte(admin, path))
    print(f"{path}: first byte after {min(took) * 1000:.0f} ms")
    assert min(took) < PROMISED * PATIENCE


def first_byte(admin: Nsqadmin, path: str) -> float:
    """Return after how many seconds it comes, without those in which nsqadmin or this process had no processor."""
    connection = http.client.HTTPConnection(*admin.http_address, timeout=100)
    connection.connect()
    processes = (admin.pid, os.getpid())
    queued, began = sum(map(queue_seconds, processes)), time.perf_counter()
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    took = time.perf_counter() - began - (sum(map(queue_seconds, processes)) - queued)
    assert answer.status == 200
    answer.read()
    connection.close()
    return took


def test_a_page_of_topics_has_fifty_of_them(admin: Nsqadmin) -> None:
    body = admin.http("GET", "/topics?page=40").body
    assert len(re.findall(rb'<tr class="topic"', body)) == 50
    assert b"Page 40 of 40" in body


def test_pages_are_not_kept_and_static_files_are(admin: Nsqadmin) -> None:
    page = admin.http("GET", "/")
    assert page.headers["cache-control"] == "no-store"
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    names = re.findall(rb'(?:href|src)="(/static/[^"]+)"', page.body)
    assert len(names) == 6
    for name in names:
        asset = admin.http("GET", name.decode())
        assert asset.status == 200
        assert "immutable" in asset.headers["cache-control"]
    assert admin.http("GET", "/static/app.css").headers["cache-control"] == "no-cache"
    favicon = admin.http("GET", "/favicon.ico")  # browsers ask for it beside plain text and JSON
    assert (favicon.status, favicon.headers["content-type"]) == (200, "image/svg+xml")
    assert admin.http("GET", "/static/..%2fapp.py").status == 404


@pytest.mark.parametrize("path", ["/actions/pause_topic?topic=topic-0001", "/actions/delete_topic?topic=topic-0001"])
def test_asking_for_an_action_does_not_do_it(admin: Nsqadmin, path: str) -> None:
    answer = admin.http("GET", path)
    assert answer.status == 200
    assert b'method="post"' in answer.body


@pytest.mark.parametrize(
    ("path", "body"),
    [("/actions/none", b"topic=t"), ("/actions/pause_topic", b""), ("/actions/publish", b"topic=t&body=x&count=x")],
)
def test_bad_arguments_are_refused(admin: Nsqadmin, path: str, body: bytes) -> None:
    assert 400 <= admin.http("POST", path, body).status < 500


# Shared by all tests of the folder
def test_the_style_sheet_and_scripts_are_as_small_as_promised() -> None:
    import gzip

    static = Path(__file__).resolve().parents[3] / "nsqadmin" / "web" / "static"
    sizes = {file.suffix: 0 for file in static.iterdir()}
    for file in static.iterdir():
        sizes[file.suffix] += len(gzip.compress(file.read_bytes()))
    assert sizes[".js"] < 30_000
    assert sizes[".css"] < 20_000
