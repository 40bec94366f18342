"""nsqd and the tools over a log in which a later version has written a message: it waits, and everybody says so."""

from __future__ import annotations

from pathlib import Path

from tests.nsqd.whole.test_history import lines
from tests.support.later_version import write_later
from tests.support.process import Nsqd, eventually
from tests.support.tools import address, run_tool


def with_later_message(path: Path) -> None:
    with Nsqd(path) as nsqd:
        client = nsqd.connect()
        for number in range(4):
            client.publish("t", b"%d" % number)
        client.subscribe("t", "c")
        eventually(lambda: nsqd.channel("t"))
    (segment,) = path.glob("topics/*/*.log")
    write_later(segment, 2)


def test_what_a_later_version_wrote_waits_for_it(tmp_path: Path) -> None:
    with_later_message(tmp_path)
    with Nsqd(tmp_path) as nsqd:
        client = nsqd.connect()
        client.subscribe("t", "c", ready=10)
        messages = client.messages(3)
        assert [it.body for it in messages] == [b"0", b"1", b"3"]
        client.finish(*messages)
        channel = eventually(lambda: (it := nsqd.channel("t"))["in_flight_count"] == 0 and it)
        assert channel["depth"] + channel["deferred_count"] == 1
        ping = eventually(lambda: (it := nsqd.http("GET", "/ping")).status == 500 and it)
        assert b"a later version wrote messages 2 to 2" in ping.body
        found = lines(nsqd.http("GET", "/topic/read?topic=t"))
        assert [it["body"] for it in found if "body" in it] == ["0", "1", "3"]
        assert [it for it in found if "gap" in it] == [{"gap": [2, 3], "reason": "newer"}]
        place = f"--nsqd-http-address={address(nsqd.http_address)}"
        replayed = run_tool("nsq_replay", "--topic=t", place, "--destination-topic=u")
        assert replayed.returncode == 1
        assert b"messages 2 to 2 have a form that only a later version can read" in replayed.stderr
    (segment,) = tmp_path.glob("topics/*/*.log")
    write_later(segment, 2, flags=0)
    with Nsqd(tmp_path) as nsqd:
        assert [it["body"] for it in lines(nsqd.http("GET", "/topic/read?topic=t"))[:-1]] == ["0", "1", "2", "3"]
        assert nsqd.channel("t")["deferred_count"] == 1  # for a minute, as for any disk that refuses
        assert nsqd.http("GET", "/ping").body == b"OK"
