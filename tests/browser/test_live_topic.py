"""docs/examples/live.html in a real browser: messages come as they are published, are finished, and survive a lost node."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest

from tests.browser.conftest import shot, until
from tests.support.browser import Browser
from tests.support.process import ROOT, Nsqd, SteadyNsqd

PAGES: Final = ROOT / "docs" / "examples"
HTML: Final = b'<img src=x onerror="document.title=1"> & "so on"'


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def site(chromium: Browser) -> Iterator[str]:
    """Serve the page at a site of its own. At the end leave it, as it would go on asking for its node."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(PAGES))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        chromium.leave()
        server.shutdown()
        thread.join()


def open_page(browser: Browser, site: str, nsqd: Nsqd, channel: str = "live#ephemeral") -> None:
    node = f"http://127.0.0.1:{nsqd.http_address[1]}"
    browser.base = site
    browser.open(f"/live.html?{urlencode({'node': node, 'topic': 'orders', 'channel': channel})}")


def test_a_page_shows_a_live_topic_and_finishes_what_it_shows(chromium: Browser, tmp_path: Path, site: str) -> None:
    with Nsqd(tmp_path, f"http-cors-origin={site}") as nsqd:
        open_page(chromium, site, nsqd)
        chromium.wait_for_text("Connected", "#state")
        for body in (b"first", HTML, b"\xff"):
            nsqd.post("/pub?topic=orders", body)
        chromium.wait_for_text("first", "#messages")
        chromium.wait_for_text(HTML.decode(), "#messages")
        chromium.wait_for_text("(base64) /w==", "#messages")
        assert chromium.title == "Live topic"
        until(lambda: nsqd.channel("orders", "live#ephemeral")["in_flight_count"] == 0, "all are finished")
        (client,) = nsqd.channel("orders", "live#ephemeral")["clients"]
        assert (client["version"], client["finish_count"]) == ("HTTP", 3)
        assert "Chrome" in client["user_agent"]
        shot(chromium, "live-topic")


def test_the_page_goes_on_when_the_node_is_back(chromium: Browser, tmp_path: Path, site: str) -> None:
    with SteadyNsqd(tmp_path, f"http-cors-origin={site}") as nsqd:
        nsqd.post("/topic/create?topic=orders")
        open_page(chromium, site, nsqd, "live")
        chromium.wait_for_text("Connected", "#state")
        nsqd.kill()
        chromium.wait_for_text("Connecting again", "#state")
        nsqd.start()
        nsqd.post("/pub?topic=orders", b"after the end")
        chromium.wait_for_text("after the end", "#messages")


def test_a_page_of_another_site_is_refused(chromium: Browser, tmp_path: Path, site: str) -> None:
    with Nsqd(tmp_path, "http-cors-origin=http://page.example") as nsqd:
        nsqd.post("/pub?topic=orders", b"secret")
        open_page(chromium, site, nsqd, "billing")
        chromium.wait_for_text("Refused", "#state")
        assert nsqd.channel("orders", "billing") is None
