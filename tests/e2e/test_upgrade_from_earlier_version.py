"""Data paths of a version before headers, keys and buried messages, and what such a version finds in ours.

`python -m tests.simulation going-back` does the same with that version's own code, which tests cannot rely on to be there.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from nsqcommon.wire.commands import dpub, hmpub, hpub, mpub, pub
from nsqcommon.wire.extensions import bury
from nsqcommon.wire.headers import NONE, encode_headers
from nsqd.log.record import decode_batch, decode_header, encode
from tests.support.earlier_version import (
    OPTIONS,
    WORDS,
    bodies,
    check,
    drained,
    fill,
    journal_words,
    records,
)
from tests.support.process import Nsqd, eventually, run_to_end

STORED: Final = Path(__file__).parent / "data_paths" / "before-headers"
NEW_WORDS: Final = {("keys", 3), ("keyless", 3), ("cancel", 3), ("bury", 5), ("job", 4)}
ONE: Final = encode_headers({"a": b"1"})


@pytest.fixture
def data_path(tmp_path: Path) -> Path:
    return shutil.copytree(STORED, tmp_path / "data")


def deferred(nsqd: Nsqd, topic: str, channel: str) -> list[Any]:
    answer = nsqd.http("GET", f"/channel/deferred?topic={topic}&channel={channel}")
    return [json.loads(line) for line in answer.body.splitlines()]


def test_all_of_it_is_there_after_an_upgrade(data_path: Path) -> None:
    with Nsqd(data_path, *OPTIONS) as nsqd:
        check(nsqd)
        for topic, channel, count in (("orders", "work", 4), ("unread", "c", 1), ("paused", "c", 1), ("long", "c", 1)):
            found = deferred(nsqd, topic, channel)
            assert len(found) == count
            for message in found:
                nsqd.post(f"/message/due?topic={topic}&channel={channel}&id={message['id']}&defer=0")
            assert drained(nsqd, topic, channel).keys() == {message["body"].encode() for message in found}


def test_a_second_start_finds_the_same(data_path: Path) -> None:
    for _ in range(2):
        with Nsqd(data_path, *OPTIONS) as nsqd:
            nsqd.kill()
    with Nsqd(data_path, *OPTIONS) as nsqd:
        check(nsqd)


def test_fsck_finds_nothing_wrong_with_it(data_path: Path) -> None:
    done = run_to_end("fsck", str(data_path))
    assert done.returncode == 0, done


def test_its_records_would_be_written_as_they_are() -> None:
    folders = sorted((STORED / "topics").iterdir())
    found = [record for folder in folders for record in records(folder)]
    assert len(found) > 20
    for record in found:
        header = decode_header(record, 0)
        assert header is not None
        batch = decode_batch(header, record, 0)
        assert batch is not None
        assert b"".join(encode(batch)) == record


def test_without_new_features_it_finds_nothing_new(tmp_path: Path) -> None:
    with Nsqd(tmp_path, *OPTIONS) as nsqd:
        fill(nsqd)
        nsqd.kill()
    assert journal_words(STORED) <= WORDS
    assert journal_words(tmp_path) <= WORDS | {("keys", 3)}  # that there are none
    assert names(tmp_path) == names(STORED)
    for topic in ("orders", "unread", "paused"):
        folder = Path("topics") / f"t.{topic}"
        found, stored = list(records(tmp_path / folder)), list(records(STORED / folder))
        assert sorted(body for it in found for body in bodies(it) or ()) == sorted(
            body for it in stored for body in bodies(it) or ()
        )
        assert not [it for it in found if any(it[52:56])]  # flags, and the length of the key


def names(data_path: Path) -> set[str]:
    """Return the names of its files, but for those that are about the process.

    Segments are told by their topic alone, as where one ends depends on the turns.
    """
    files = [it for it in data_path.rglob("*") if it.is_file() and it.suffix != ".lock" and it.name != "owner.json"]
    found = {str(it.relative_to(data_path)) for it in files}
    return {str(Path(it).with_stem("segment")) if it.endswith(".log") else it for it in found}


def test_it_reads_messages_with_keys_and_passes_over_new_words_of_the_journal(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        nsqd.post("/topic/create?topic=t")
        client = nsqd.connect()
        client.identify(feature_negotiation=True, extensions=["keys"])
        pubs = [pub("t", b"%d" % number).replace(b"\n", b" key-%d\n" % number, 1) for number in range(5)]
        client.send(*pubs, pub("t", b"keyless"), mpub("t", [b"m1", b"m2"]).replace(b"\n", b" many\n", 1))
        client.send(dpub("t", 3_600_000, b"later").replace(b"\n", b" deferred\n", 1))
        assert [client.response() for _ in range(8)] == [b"OK"] * 8
        assert nsqd.http("POST", "/message/cancel?topic=t&key=deferred").status == 200
        nsqd.post("/channel/create?topic=t&channel=c")
        consumer = nsqd.connect()
        consumer.identify(feature_negotiation=True, extensions=["bury"])
        consumer.subscribe("t", ready=1)
        consumer.send(bury(consumer.message().id, "bad"))
        eventually(lambda: nsqd.channel("t").get("buried_count"))
        nsqd.post("/channel/kick?topic=t&channel=c&rate=1")
        consumer.message()
        nsqd.kill()
    found = [body for record in records(tmp_path / "topics" / "t.t") for body in bodies(record) or ()]
    assert found == [*(b"%d" % number for number in range(5)), b"keyless", b"m1", b"m2", b"later"]
    assert journal_words(tmp_path) - WORDS == NEW_WORDS


def test_it_never_takes_headers_for_messages(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        client = nsqd.connect()
        client.identify(feature_negotiation=True, extensions=["headers"])
        client.publish("t", b"plain")
        for command in (hpub("t", ONE, b"one"), hmpub("t", [(ONE, b"two"), (NONE, b"none")])):
            assert client.ask(command) == b"OK"
        client.publish("t", b"plain again")
        nsqd.kill()
    found = [bodies(record) for record in records(tmp_path / "topics" / "t.t")]
    assert found == [[b"plain"], None, None, [b"plain again"]]
