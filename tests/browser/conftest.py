"""A cluster under load with one of everything, nsqadmin, and one browser for all tests of the folder, until its last one.

A test that fails leaves a screenshot of its page in artefacts/browser (or where NSQ_TEST_ARTEFACTS says), for CI to
keep. NSQ_TEST_SCREENSHOTS=1 makes the tests take all of theirs.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.browser.demo import demo
from tests.support.browser import Browser, open_browser
from tests.support.client import Client, Disconnected
from tests.support.cluster import Cluster, a_cluster, name_of
from tests.support.needs import need
from tests.support.process import PATIENT, ROOT, Daemon, Nsqadmin, eventually, needs_module

ARTEFACTS: Final = Path(os.environ.get("NSQ_TEST_ARTEFACTS", ROOT / "artefacts")) / "browser"
TAKES_ALL: Final = os.environ.get("NSQ_TEST_SCREENSHOTS") == "1"
HTML: Final = b'{"note":"<img src=x onerror=alert(1)><script>document.title=1</script>","customer":"ana","total":12.5}'


class Load:
    """Producers and consumers that run until the end: orders are billed, fraud has no consumer, payments hang."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stopping = threading.Event()
        self.is_wanted = threading.Event()  # a test looks at it: nobody needs it meanwhile, and it takes processor time
        self._clients: list[Client] = []
        self._threads = [threading.Thread(target=self._publish), threading.Thread(target=self._consume)]

    def __enter__(self) -> Load:
        for node in self._cluster.nodes:
            for topic, channel in (("orders", "billing"), ("orders", "fraud"), ("payments", "ledger")):
                node.post(f"/topic/create?topic={topic}")
                node.post(f"/channel/create?topic={topic}&channel={channel}")
            node.post("/pub?topic=orders", HTML)
            node.post("/pub?topic=payments", b"not json, but text: \xf0\x9f\x92\xb6")
            node.post("/pub?topic=clicks", b"click 0")  # its incident must not turn up in the middle of the first test
        self._cluster.nodes[0].post("/channel/pause?topic=payments&channel=ledger")
        self._cluster.nodes[0].post("/pub?topic=archive", b"\x00\x01\xff binary")
        self._cluster.lookupds[0].post("/topic/create?topic=planned")
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.is_wanted.set()
        for thread in self._threads:
            thread.join()
        for client in self._clients:
            client.close()

    def _publish(self) -> None:
        producers = [self._connect(node.tcp, "web-01") for node in self._cluster.nodes]
        number = 0
        try:
            while not self._stopping.wait(0.5):
                self.is_wanted.wait(10)  # nsqd gives up who says nothing for a minute
                for producer in producers:
                    number += 1
                    producer.publish("orders", b'{"order":%d,"customer":"ana"}' % number)
                    producer.publish("clicks", b"click %d" % number)
        except (Disconnected, OSError):
            pass  # a test has stopped the node

    def _consume(self) -> None:
        consumers = [self._connect(node.tcp, "billing-01") for node in self._cluster.nodes]
        for consumer in consumers:
            consumer.subscribe("orders", "billing", ready=5)
        while not self._stopping.is_set():
            for consumer in list(consumers):
                try:
                    consumer.finish(consumer.message(timeout=1))
                except (TimeoutError, AssertionError):
                    pass
                except (Disconnected, OSError):
                    consumers.remove(consumer)
            if not consumers:
                return

    def _connect(self, address: tuple[str, int], name: str) -> Client:
        client = Client(address)
        client.identify(client_id=name, hostname=f"{name}.example", user_agent="tests/1.0")
        self._clients.append(client)
        return client


@pytest.fixture(scope="session")
def needs() -> None:
    needs_module("starlette")
    needs_module("jinja2")
    need("browser")


@pytest.fixture(scope="package")
def cluster_and_load(needs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Load]]:
    with a_cluster(tmp_path_factory.mktemp("cluster")) as it, Load(it) as load:
        it.wait_for("orders")
        it.wait_for("clicks")
        yield it, load


@pytest.fixture
def cluster(cluster_and_load: tuple[Cluster, Load]) -> Iterator[Cluster]:
    """Return the cluster, with its load while the test runs."""
    it, load = cluster_and_load
    load.is_wanted.set()
    yield it
    load.is_wanted.clear()


@pytest.fixture(scope="package")
def admin(cluster_and_load: tuple[Cluster, Load]) -> Iterator[Nsqadmin]:
    """Run nsqadmin for the cluster, open to everybody, with a sample each second."""
    cluster, _ = cluster_and_load
    options = (*cluster.lookupd_options, "sample-interval=1s", "discovery-interval=2s", "enable-publish", PATIENT)
    with Nsqadmin(*options) as it:
        eventually(lambda: all(name in it.http("GET", "/topics").body for name in (b"billing", b"clicks")))
        yield it
        assert "Traceback" not in it.log


@pytest.fixture(scope="package")
def snapshot_admin(needs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqadmin]:
    """Run nsqadmin on the recording of `tests.browser.demo`, which looks the same each time."""
    from nsqadmin.cluster.recording import encode

    file = tmp_path_factory.mktemp("snapshot") / "demo.json"
    file.write_bytes(encode(demo()))
    with Nsqadmin(f"snapshot={file}") as it:
        yield it
        assert "Traceback" not in it.log


@pytest.fixture(scope="package")
def chromium(needs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def page(chromium: Browser, admin: Nsqadmin, cluster: Cluster) -> Iterator[Browser]:
    """Return the browser on the live cluster. It must end without complaints and requests to other hosts."""
    yield from prepared(chromium, admin)


@pytest.fixture
def still_page(chromium: Browser, snapshot_admin: Nsqadmin) -> Iterator[Browser]:
    """Return the browser on the recorded cluster."""
    yield from prepared(chromium, snapshot_admin, stays=True)


def prepared(browser: Browser, admin: Daemon, *, stays: bool = False) -> Iterator[Browser]:
    """Prepare the browser for pages of `admin`. The last one may stay open if it asks for nothing by itself."""
    base = f"http://127.0.0.1:{admin.http_address[1]}"
    if browser.may_stay and browser.base != base:
        browser.leave()
    browser.base = base
    browser.look()
    browser.allow_scripts(True)
    browser.complaints()
    browser.requests()
    yield browser
    browser.allow_scripts(True)
    complaints = browser.complaints()
    requests = browser.requests()
    browser.forget()
    browser.may_stay = stays
    if stays:
        browser.hide()
    else:
        browser.leave()
    assert complaints == []
    foreign = [it for it in requests if not it.startswith((browser.base + "/", "data:", "chrome:", "about:"))]
    assert foreign == []


def shot(browser: Browser, name: str) -> None:
    """Take a screenshot for people, if they have asked for it. No test reads it, and it costs as much as half a page."""
    if TAKES_ALL:
        browser.screenshot(ARTEFACTS / f"{name}.png")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    browser = getattr(item, "funcargs", {}).get("chromium")
    if report.when == "call" and report.failed and isinstance(browser, Browser):
        name = re.sub(r"[^\w.-]+", "-", item.name)
        with suppress(Exception):  # the browser itself may be what failed, and the report has to say so
            browser.screenshot(ARTEFACTS / f"failed-{name}.png")
    return report


def address_of(cluster: Cluster, index: int = 0) -> str:
    return name_of(cluster.nodes[index])


def until(condition: object, what: str) -> None:
    """Wait for something in the cluster, not on a page."""
    deadline = time.monotonic() + 30.0
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
