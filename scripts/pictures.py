"""The pictures of the documents: the demo, and a browser that looks at it.

Everything runs on this machine's loopback, at free ports, and ends with the script.
The troubles are those of the demo's shop. Ana pauses the reminders, and at last a node hangs.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from scripts.command_line import option, read_options
from scripts.demo_cluster import HOST, SHIFTS, Cluster, first_free

if TYPE_CHECKING:  # --help works without the browser's driver
    from tests.support.browser import Browser

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "docs" / "pictures"
LARGEST: Final = 200_000  # bytes
WIDTH: Final = 1200
TRAFFIC: Final = 180.0  # seconds; a consumer is stuck after 30 of them, and a chart needs some more
SILENCE: Final = 75.0  # seconds that the node hangs before its pictures
RATE: Final = 50.0  # orders a second


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


def _select_topics(browser: Browser) -> None:
    browser.run("[...document.querySelectorAll('tr.topic [name=pick]')].slice(1, 6).forEach((it) => it.click())")


RUNNING: Final = (
    Picture("overview", "/", 820, width=1280, dark=True),
    Picture("diagnosis", "/topics/shipments/labels", 900, dark=True),
    Picture("topics", "/topics", 700, prepare=_select_topics),
    Picture("jobs", "/jobs", 520, dark=True),
    Picture("consumers", "/consumers?group=user_agent", 620, width=1500),
    Picture("messages", "/topics/orders?tab=messages&filter=bicycle&columns=number+item+price", 760),
    Picture(
        "replay",
        "/topics/orders?tab=messages&filter=item+%3D+bicycle+and+price+%3E+450&columns=number+item+price",
        900,
        dark=True,
        prepare=_choose_what_to_replay,
    ),
    Picture("drain", "/nodes/drain?node={node}", 760),
    Picture("paused", "/topics/reminders/send", 560),
    Picture("activity", "/activity", 360),
)
SILENT: Final = (
    Picture("silent-node", "/nodes", 560, width=1500),
    Picture("silent-charts", "/topics/prints/printer", 900),
)

_HIDE: Final = """
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) if (walk.currentNode.data.trim() === arguments[0]) walk.currentNode.data = ' shop';
"""


@contextmanager
def _demo(folder: Path) -> Iterator[Cluster]:
    """Run the demo, as `scripts/demo` does, until the end."""
    cluster = first_free([Cluster(folder, shift, RATE) for shift in SHIFTS])
    if cluster is None:
        raise OSError("the ports of the demo are in use")
    command = [
        sys.executable,
        "-P",
        "-m",
        "scripts.demo_cluster",
        f"--folder={folder}",
        f"--shift-ports={cluster.shift}",
    ]
    with (folder / "demo.log").open("wb") as log:
        demo = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        yield cluster
    finally:
        demo.terminate()
        demo.wait()


def _process_of(node: Path) -> int:
    """Return the id of the nsqd that has this data path."""
    wanted = f"--data-path={node}".encode()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if wanted in file.read_bytes().split(b"\0"):
                return int(file.parent.name)
    raise OSError(f"no process has the data path {node}")


def make(folder: Path) -> None:
    """Make all pictures in this folder. Raise OSError or AssertionError if something does not work."""
    from tests.support.browser import open_browser

    temporary = Path(tempfile.mkdtemp(prefix="nsq-pictures-"))
    try:
        say("starting the demo and chromium")
        with _demo(temporary) as cluster, open_browser(temporary / "browser") as browser:
            browser.base = f"http://{HOST}:{cluster.admin_port}"
            browser.command("Network.enable", {})
            browser.command("Network.setExtraHTTPHeaders", {"headers": {"X-Forwarded-User": "ana"}})
            _wait(TRAFFIC / 2, "traffic")
            _pause(browser.base)
            _wait(TRAFFIC / 2, "traffic with a paused channel")
            for picture in RUNNING:
                _take(browser, picture, folder, f"{HOST}:{cluster.nsqds[1] + 1}")
            hangs = _process_of(temporary / "nsqd3")
            os.kill(hangs, signal.SIGSTOP)
            try:
                _wait(SILENCE, "a node that hangs")
                for picture in SILENT:
                    _take(browser, picture, folder, f"{HOST}:{cluster.nsqds[2] + 1}")
            finally:
                os.kill(hangs, signal.SIGCONT)
    finally:
        shutil.rmtree(temporary)


def _pause(base: str) -> None:
    fields = urlencode({"topic": "reminders", "channel": "send"}).encode()
    headers = {"content-type": "application/x-www-form-urlencoded", "X-Forwarded-User": "ana"}
    with urlopen(Request(f"{base}/actions/pause_channel", fields, headers), timeout=10) as answer:
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
    about = "Make the pictures of the documents from the demo; takes about five minutes."
    chosen = read_options(PicturesOptions, name="scripts/make-pictures", about=about)
    from tests.support.needs import missing

    if reason := missing("browser"):
        say(f"make-pictures: {reason}, which Debian has in chromium and chromium-driver")
        return 1
    chosen.folder.mkdir(parents=True, exist_ok=True)
    try:
        make(chosen.folder)
    except (AssertionError, OSError) as error:
        say(f"make-pictures: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
