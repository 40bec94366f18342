"""The pictures of the documents: a cluster with troubles, nsqadmin, and a browser that looks at it.

Everything runs on this machine's loopback, at free ports, and ends with the script.
The troubles: mail hangs, the ledger fails, nobody reads fraud, ana has paused the warehouse, and at last a node hangs.
"""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from scripts.command_line import option, read_options

if TYPE_CHECKING:  # --help works without the browser's driver
    from nsqcommon.wire.message import Message
    from tests.support.browser import Browser
    from tests.support.client import Client
    from tests.support.process import Nsqadmin, Nsqd

    Treat = Callable[[Client, Message, int], None]

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "docs" / "pictures"
LARGEST: Final = 200_000  # bytes
WIDTH: Final = 1200
TRAFFIC: Final = 60.0  # seconds; a consumer is stuck after 30 of them, and a chart needs some more
SILENCE: Final = 15.0  # seconds that the node hangs before its picture
CHANNELS: Final = {"orders": ("billing", "mail", "fraud"), "payments": ("ledger",), "stock": ("warehouse",)}
GOODS: Final = ("kettle", "lamp", "bicycle", "umbrella", "clock")
CITIES: Final = ("Oslo", "Lisbon", "Ghent", "Turin")


@dataclass(frozen=True, slots=True)
class Picture:
    name: str
    path: str
    height: int
    width: int = WIDTH
    dark: bool = False  # whether there is one in dark colours as well
    prepare: Callable[[Browser], None] | None = None  # what a user does on the page before the picture is taken


def _choose_what_to_replay(browser: Browser) -> None:
    browser.wait("document.querySelectorAll('[name=pick]').length >= 3")
    browser.run("[...document.querySelectorAll('[name=pick]')].slice(0, 3).forEach((it) => it.click())")
    browser.click_text("Replay 3 to channel", "#replay-selected")
    browser.wait_for_text("Replay 3 messages", "#dialog h1")
    browser.click_text("billing", "#dialog label")


HEALTHY: Final = (
    Picture("overview", "/", 900, dark=True),
    Picture("diagnosis", "/topics/orders/fraud", 900, dark=True),
    Picture("consumers", "/consumers?group=none", 620, width=1500),
    Picture("messages", "/topics/orders?tab=messages&filter=bicycle&columns=number+item+city+price", 760),
    Picture(
        "replay",
        "/topics/orders?tab=messages&filter=price+%3D+94+and+number+%3E+1600&columns=number+item+city+price",
        900,
        dark=True,
        prepare=_choose_what_to_replay,
    ),
    Picture("drain", "/nodes/drain?node={node}", 560),
    Picture("paused", "/topics/stock/warehouse", 560),
    Picture("activity", "/activity", 360),
)
SILENT: Final = (Picture("silent-node", "/nodes", 560, width=1500),)

_HIDE: Final = """
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) if (walk.currentNode.data.trim() === arguments[0]) walk.currentNode.data = ' broker';
"""


class Shop:
    """Producers and consumers of a shop, until the end. A consumer treats its messages as it is told to."""

    def __init__(self, nodes: tuple[Nsqd, ...]) -> None:
        self._nodes = nodes
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Shop:
        for at, node in enumerate(self._nodes):
            for topic, channels in CHANNELS.items():
                node.post(f"/topic/create?topic={topic}")
                for channel in channels:
                    node.post(f"/channel/create?topic={topic}&channel={channel}")
            for number in (1, 2):
                self._consume(node, "orders", "billing", f"billing-{number}", _finish)
                self._consume(node, "payments", "ledger", f"ledger-{number}", _fail_often)
            self._consume(node, "stock", "warehouse", "warehouse-1", _finish)
            # It takes what it may have, and never answers.
            self._connect(node, "mail-1", "mailer/2.3").subscribe("orders", "mail", ready=10)
            self._start(self._publish, self._connect(node, "shop-1", "go-nsq/1.1.0"), at)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments))
        self._threads[-1].start()

    def _connect(self, node: Nsqd, name: str, agent: str) -> Client:
        client = node.connect()  # closed together with the node
        # Nobody here answers heartbeats; a node disconnects such a client after two minutes.
        client.identify(
            client_id=name,
            hostname=f"{name}.shop",
            user_agent=agent,
            msg_timeout=600_000,
            heartbeat_interval=60_000,
        )
        return client

    def _consume(self, node: Nsqd, topic: str, channel: str, name: str, treat: Treat) -> None:
        client = self._connect(node, name, "go-nsq/1.1.0")
        client.subscribe(topic, channel, ready=5)
        self._start(self._treat, client, treat)

    def _treat(self, client: Client, treat: Treat) -> None:
        from tests.support.client import Disconnected

        for number in itertools.count():
            if self._stopping.is_set():
                return
            try:
                treat(client, client.message(timeout=1), number)
            except TimeoutError:
                pass  # nothing came
            except (Disconnected, OSError):
                return

    def _publish(self, client: Client, at: int) -> None:
        from tests.support.client import Disconnected

        for number in itertools.count(at + 1, 3):
            if self._stopping.wait(0.09):
                return
            order = {
                "number": number,
                "item": GOODS[number % 5],
                "city": CITIES[number % 4],
                "price": number * 7 % 90 + 5,
            }
            body = json.dumps(order).encode()
            topics = ["orders", *(["payments"] if number % 2 else []), *(["stock"] if number % 5 == 0 else [])]
            try:
                for topic in topics:
                    client.publish(topic, body)
            except (Disconnected, OSError):
                return  # the node hangs now


def _finish(client: Client, message: Message, _: int) -> None:
    client.finish(message)


def _fail_often(client: Client, message: Message, number: int) -> None:
    if number % 5 < 3:
        client.requeue(message, 3000)
    else:
        client.finish(message)


@contextmanager
def _cluster(folder: Path) -> Iterator[tuple[Nsqadmin, tuple[Nsqd, ...]]]:
    from tests.support.process import Nsqadmin, Nsqd, Nsqlookupd

    with ExitStack() as stack:
        lookupds = [stack.enter_context(Nsqlookupd()) for _ in range(2)]
        told = [f"lookupd-tcp-address=127.0.0.1:{it.tcp[1]}" for it in lookupds]
        nodes = tuple(
            stack.enter_context(
                Nsqd(folder / f"nsqd-{number}", "broadcast-address=127.0.0.1", "retention-time=24h", *told)
            )
            for number in (1, 2, 3)
        )
        asked = [f"lookupd-http-address=127.0.0.1:{it.http_address[1]}" for it in lookupds]
        admin = stack.enter_context(Nsqadmin("sample-interval=1s", "discovery-interval=2s", "enable-publish", *asked))
        yield admin, nodes


def make(folder: Path) -> None:
    """Make all pictures in this folder. Raise OSError, AssertionError or Refused if something does not work."""
    from tests.support.browser import open_browser
    from tests.support.cluster import name_of

    temporary = Path(tempfile.mkdtemp(prefix="nsq-pictures-"))
    try:
        say("starting 2 nsqlookupd, 3 nsqd, nsqadmin and chromium")
        with _cluster(temporary) as (admin, nodes), open_browser(temporary / "browser") as browser:
            browser.base = f"http://127.0.0.1:{admin.http_address[1]}"
            browser.command("Network.enable", {})
            browser.command("Network.setExtraHTTPHeaders", {"headers": {"X-Forwarded-User": "ana"}})
            with Shop(nodes):
                _wait(TRAFFIC / 2, "traffic")
                _pause(admin)
                _wait(TRAFFIC / 2, "traffic with a paused channel")
                for picture in HEALTHY:
                    _take(browser, picture, folder, name_of(nodes[1]))
                nodes[2].send_signal(signal.SIGSTOP)
                try:
                    _wait(SILENCE, "a node that hangs")
                    for picture in SILENT:
                        _take(browser, picture, folder, name_of(nodes[2]))
                finally:
                    nodes[2].send_signal(signal.SIGCONT)
    finally:
        shutil.rmtree(temporary)


def _pause(admin: Nsqadmin) -> None:
    fields = urlencode({"topic": "stock", "channel": "warehouse"}).encode()
    headers = {"content-type": "application/x-www-form-urlencoded", "X-Forwarded-User": "ana"}
    answer = admin.http("POST", "/actions/pause_channel", fields, headers=headers)
    assert answer.status == 200, answer


def _take(browser: Browser, picture: Picture, folder: Path, node: str) -> None:
    for scheme in ("light", "dark") if picture.dark else ("light",):
        browser.look(width=picture.width, height=picture.height, scheme=scheme)
        browser.open(picture.path.format(node=node))
        if picture.prepare is not None:
            picture.prepare(browser)
        browser.run("document.activeElement?.blur()")
        time.sleep(2)  # two samples, which the page shows as they come
        browser.run(_HIDE, socket.gethostname())
        file = folder / f"{picture.name}{'-dark' if scheme == 'dark' else ''}.png"
        shot = browser.command("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": False})
        file.write_bytes(base64.b64decode(shot["data"]))
        size = file.stat().st_size
        say(f"{file.name}: {size / 1000:.0f} kB")
        assert size <= LARGEST, f"{file.name} has {size} bytes, and {LARGEST} are allowed: make it less high"


def _wait(seconds: float, what: str) -> None:
    for left in range(round(seconds), 0, -10):
        say(f"{what}: {left} s to go")
        time.sleep(min(left, 10))


def say(text: str) -> None:
    print(text, flush=True)


@dataclass(frozen=True, kw_only=True)
class PicturesOptions:
    folder: Path = option(FOLDER, "where to put them (default: docs/pictures)")


def main() -> int:
    about = "Make the pictures of the documents from a cluster on this machine; takes about two minutes."
    chosen = read_options(PicturesOptions, name="scripts/make-pictures", about=about)
    from tests.support.client import Refused
    from tests.support.needs import missing

    if reason := missing("browser"):
        say(f"make-pictures: {reason}, which Debian has in chromium and chromium-driver")
        return 1
    chosen.folder.mkdir(parents=True, exist_ok=True)
    try:
        make(chosen.folder)
    except (AssertionError, OSError, Refused) as error:
        say(f"make-pictures: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
