"""Upgrading from a version before headers, keys and buried messages, and going back to it, with that version's code.

The code comes from the repository's history. docs/how-to/upgrade.md says what this shows.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nsqcommon.wire.commands import dpub, hdpub, hpub, mpub, pub
from nsqcommon.wire.extensions import bury
from nsqcommon.wire.headers import encode_headers
from scripts.releasing.archives import extract_all
from tests.support.client import Client
from tests.support.earlier_version import CENTURY_MS, OPTIONS, check, drained, fill, publish_and_finish
from tests.support.process import ROOT, Nsqd, eventually

BEFORE: Final = "a498b48"  # the last commit whose nsqd knew none of it
ONE: Final = encode_headers({"a": b"1"})
Say = Callable[[str], object]


class Versions:
    """Starts nsqds of both versions on the same data path."""

    def __init__(self, code: Path, data_path: Path) -> None:
        self._code = code
        self._data_path = data_path

    def now(self) -> Nsqd:
        return Nsqd(self._data_path, *OPTIONS)

    def before(self) -> Nsqd:
        return Nsqd(self._data_path, *OPTIONS, environ={"PYTHONPATH": str(self._code)})


def code_of(commit: str, folder: Path) -> Path:
    """Write the code of a commit into this folder."""
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        extract_all(files, folder)
    return folder


def run(folder: Path, commit: str, say: Say) -> None:
    code = code_of(commit, folder / "code")
    for number, scenario in enumerate(SCENARIOS):
        scenario(Versions(code, folder / f"data-{number}"))
        say(f"{commit}: {str(scenario.__doc__).partition('.')[0]}")


def store(folder: Path, commit: str, into: Path) -> None:
    """Store a data path of that version as tests/e2e/data_paths has it: as `fill` and kill -9 leave it."""
    versions = Versions(code_of(commit, folder / "code"), folder / "data")
    with versions.before() as nsqd:
        fill(nsqd)
        nsqd.kill()
    shutil.copytree(folder / "data", into, ignore=shutil.ignore_patterns("*.lock"))


def _upgraded(versions: Versions) -> None:
    """What the earlier version left is all there after an upgrade, also after kill -9."""
    with versions.before() as nsqd:
        answer = nsqd.connect().identify(feature_negotiation=True, extensions=["keys"])
        assert "extensions" not in answer, "this commit knows of extensions, so it is not from before them"
        fill(nsqd)
        nsqd.kill()
    with versions.now() as nsqd:
        check(nsqd)


def _gone_back(versions: Versions) -> None:
    """What an upgraded nsqd took from clients of NSQ is all there for the earlier version, also after kill -9."""
    with versions.now() as nsqd:
        fill(nsqd)
        nsqd.kill()
    with versions.before() as nsqd:
        check(nsqd)


def _with_keys(versions: Versions) -> None:
    """Messages that were published with keys are all there after going back, and one that was cancelled is not."""
    with versions.now() as nsqd:
        client = _prepared(nsqd)
        for number in range(10):
            client.send(pub("t", b"%d" % number).replace(b"\n", b" key-%d\n" % number, 1))
        client.send(pub("t", b"keyless"), mpub("t", [b"m1", b"m2"]).replace(b"\n", b" many\n", 1))
        client.send(dpub("t", CENTURY_MS, b"cancelled").replace(b"\n", b" later\n", 1))
        client.send(dpub("t", CENTURY_MS, b"deferred").replace(b"\n", b" much-later\n", 1))
        assert [client.response() for _ in range(14)] == [b"OK"] * 14
        cancelled = nsqd.http("POST", "/message/cancel?topic=t&key=later").json
        assert cancelled["cancelled"] == 1, cancelled
        client.send(dpub("u", CENTURY_MS, b"deferred").replace(b"\n", b" later\n", 1))
        assert client.response() == b"OK"
        nsqd.post("/message/cancel?topic=u&key=later")
        nsqd.kill()
    with versions.before() as nsqd:
        nsqd.post("/channel/create?topic=u&channel=c")
        assert nsqd.channel("u")["deferred_count"] == 1  # the one case in which it is delivered, as the page says
        assert drained(nsqd, "t").keys() == {b"keyless", b"m1", b"m2", *(b"%d" % number for number in range(10))}
        assert nsqd.channel("t")["deferred_count"] == 1


def _with_headers(versions: Versions) -> None:
    """Before a message with headers the earlier version stops, drops nothing, and leaves the rest to an upgrade.

    Its nsqd reads the record again and again, and does not end with SIGTERM.
    """
    with versions.now() as nsqd:
        client = _prepared(nsqd)
        nsqd.post("/topic/create?topic=plain")
        nsqd.post("/channel/create?topic=plain&channel=c")
        client.publish("t", b"before")
        client.publish("plain", b"plain")
        assert client.ask(hpub("t", ONE, b"headers")) == b"OK"
        client.publish("t", b"behind")
        assert nsqd.stop() == 0
    with versions.before() as nsqd:
        assert drained(nsqd, "t", left=2).keys() == {b"before"}
        assert drained(nsqd, "plain").keys() == {b"plain"}
        nsqd.kill()
    with versions.now() as nsqd:
        assert drained(nsqd, "t").keys() == {b"headers", b"behind"}


def _with_deferred_headers(versions: Versions) -> None:
    """A deferred message with headers is still there, although the earlier version wants to compact it."""
    with versions.now() as nsqd:
        client = _prepared(nsqd)
        assert client.ask(hdpub("t", CENTURY_MS, ONE, b"deferred")) == b"OK"
        nsqd.kill()
    folder = nsqd.data_path / "topics" / "t.t"
    with versions.before() as nsqd:
        publish_and_finish(nsqd, "t", 100)
        eventually(lambda: list(folder.glob("carried.*.tmp")), 60)  # it reads the record again and again
        assert nsqd.channel("t")["deferred_count"] == 1
        nsqd.kill()
    assert len(list(folder.glob("*.log"))) > 10
    with versions.now() as nsqd:
        eventually(lambda: (folder / "carried.000001").exists() and len(list(folder.glob("*.log"))) < 3, 60)
        found = nsqd.http("GET", "/channel/deferred?topic=t&channel=c").json
        assert (found["body"], found["headers"]) == ("deferred", {"a": "1"})


def _buried(versions: Versions) -> None:
    """Other messages of a channel that has buried ones are all there after going back."""
    with versions.now() as nsqd:
        _prepared(nsqd).publish("t", *(b"%d" % number for number in range(10)))
        _bury(nsqd, 4)
        assert nsqd.stop() == 0
    with versions.before() as nsqd:
        assert drained(nsqd, "t").keys() >= {b"%d" % number for number in range(4, 10)}


def _by_the_page(versions: Versions) -> None:
    """As the page says it: after a kick, and after the messages with headers were consumed, all is there."""
    with versions.now() as nsqd:
        client = _prepared(nsqd)
        client.publish("t", *(b"%d" % number for number in range(10)))
        _bury(nsqd, 4)
        for body in (b"h1", b"h2"):
            assert client.ask(hpub("u", ONE, body)) == b"OK"
        client.publish("u", b"plain")
        nsqd.post("/channel/create?topic=u&channel=c")
        assert drained(nsqd, "u").keys() == {b"h1", b"h2", b"plain"}
        nsqd.post("/channel/kick?topic=t&channel=c")
        eventually(lambda: nsqd.channel("t").get("buried_count", 0) == 0)
        client.publish("u", b"one more")
        assert nsqd.stop() == 0
    with versions.before() as nsqd:
        assert drained(nsqd, "t").keys() == {b"%d" % number for number in range(10)}
        assert drained(nsqd, "u").keys() == {b"one more"}
        assert nsqd.http("GET", "/ping").body == b"OK"
        assert nsqd.stop() == 0


def _prepared(nsqd: Nsqd) -> Client:
    """Create a channel, and return a client that may use keys and headers."""
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    client = nsqd.connect()
    client.identify(feature_negotiation=True, extensions=["keys", "headers"])
    return client


def _bury(nsqd: Nsqd, count: int) -> None:
    consumer = nsqd.connect()
    consumer.identify(feature_negotiation=True, extensions=["bury"])
    consumer.subscribe("t", ready=count)
    consumer.send(b"RDY 0\n", *(bury(it.id, "bad") for it in consumer.messages(count)))
    consumer.in_step()
    consumer.close()
    eventually(lambda: nsqd.channel("t")["buried_count"] >= count)


SCENARIOS: Final = (_upgraded, _gone_back, _with_keys, _with_headers, _with_deferred_headers, _buried, _by_the_page)
