"""What a stranger's page can do in a real browser, whose headers are what nsqadmin and nsqd go by.

evil.test resolves to this machine, as a rebound name does, so that the browser takes the daemons for the page's own site.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.browser import Browser
from tests.support.cluster import name_of
from tests.support.process import Nsqadmin, Nsqd, eventually

ASK = "return fetch(arguments[0], {method: arguments[1], mode: arguments[2]}).then((it) => it.status, () => -1)"


def test_a_rebound_page_is_shown_nothing_of_nsqadmin(chromium: Browser, tmp_path: Path) -> None:
    with Nsqd(tmp_path, "broadcast-address=127.0.0.1") as node, Nsqadmin(f"nsqd-http-address={name_of(node)}") as admin:
        chromium.base = f"http://evil.test:{admin.http_address[1]}"
        chromium.open("/topics")
        assert "start it with --allowed-host=evil.test" in chromium.text()
        chromium.open("/ping")
        assert "--allowed-host=evil.test" in chromium.text()
    chromium.complaints()


def test_a_strangers_page_reads_and_changes_nothing_at_nsqd(chromium: Browser, tmp_path: Path) -> None:
    with Nsqd(tmp_path, "broadcast-address=127.0.0.1") as node:
        node.post("/topic/create?topic=t")
        port = node.http_address[1]
        chromium.base = f"http://evil.test:{port}"
        chromium.open("/ping")
        rebound = {
            target: chromium.run(ASK, target, method, "same-origin")
            for method, target in (
                ("GET", "/stats"),
                ("GET", "/topic/log?topic=t"),
                ("POST", "/topic/pause?topic=t"),
                ("POST", "/topic/delete?topic=t"),
            )
        }
        assert rebound == dict.fromkeys(rebound, 421)
        for path in ("/topic/pause?topic=t", "/topic/delete?topic=t"):
            chromium.run(ASK, f"http://127.0.0.1:{port}{path}", "POST", "no-cors")
        eventually(lambda: node.log.count("403 POST /topic/") == 2)
        assert not node.topic("t")["paused"]
        chromium.base = f"http://127.0.0.1:{port}"
        chromium.open("/ping")
        assert chromium.run(ASK, "/topic/pause?topic=t", "POST", "same-origin") == 200
        assert node.topic("t")["paused"]
    chromium.complaints()
