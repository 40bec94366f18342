"""An nsqlookupd or nsqd answers tools with something that is not NSQ's: one clear line, and no traceback."""

from __future__ import annotations

import signal

import pytest

from tests.support.http_sink import HttpSink
from tests.support.tools import Tool, run_tool

NO_OBJECT = "not what NSQ answers: no JSON object"
STAT = ("nsq_stat", "--topic=t", "--channel=c", "--count=1")
PEEK = ("nsq_tail", "--peek", "--topic=t")
REPLAY = ("nsq_replay", "--topic=t", "--destination-topic=u")


@pytest.mark.parametrize(
    ("tool", "server", "said", "reason"),
    [
        (STAT, "lookupd", b"[]", NO_OBJECT),
        (STAT, "lookupd", b"[" * 100_000, "not JSON: "),
        (STAT, "lookupd", b'{"producers":[{"broadcast_address":5}]}', "broadcast_address is not a string"),
        (STAT, "nsqd", b'{"topics":[{"topic_name":"t","channels":{}}]}', "failed to find channel(c)"),
        (
            STAT,
            "nsqd",
            b'{"topics":[{"topic_name":"t","channels":[{"channel_name":"c","depth":"5"}]}]}',
            "not a number",
        ),
        (PEEK, "lookupd", b"null", NO_OBJECT),
        (PEEK, "nsqd", b'{"topics":[]}', "not what NSQ answers: no 'node'"),
        (REPLAY, "lookupd", b'{"producers":"all"}', "not what NSQ answers: producers is not a list"),
        (REPLAY, "nsqd", b'{"node":"n","log":"l","first":1,"next":true}', "not what NSQ answers: next is not a number"),
    ],
)
def test_what_is_no_answer_of_nsq_is_one_clear_line(
    tool: tuple[str, ...], server: str, said: bytes, reason: str
) -> None:
    with HttpSink(content=said) as sink:
        result = run_tool(*tool, f"--{server}-http-address={sink.url.removeprefix('http://')}")
    assert result.returncode == 1
    assert reason in result.stderr.decode()
    assert result.stderr.count(b"\n") == 1, result.stderr.decode()


def test_nsq_tail_does_not_look_into_what_is_no_answer() -> None:
    with HttpSink(content=b'{"topics":[5]}') as sink:
        place = sink.url.removeprefix("http://")
        with Tool("nsq_tail", "--topic=t", f"--nsqd-http-address={place}", "--nsqd-tcp-address=127.0.0.1:1") as tool:
            tool.wait_for_log("cannot check whether topic t already has a channel")
            tool.wait()
    assert "Traceback" not in tool.log


@pytest.mark.parametrize("said", [b"[]", b'{"topics":[5]}', b'{"topics":["../../escaped"]}'])
def test_nsq_to_file_goes_on_asking_for_topics(said: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("archive") / "inner" / "most"
    folder.mkdir(parents=True)
    with HttpSink(content=said) as sink:
        place = f"--lookupd-http-address={sink.url.removeprefix('http://')}"
        with Tool(
            "nsq_to_file", place, "--topic-pattern=.*", f"--output-dir={folder}", "--topic-refresh=100ms"
        ) as tool:
            tool.wait_for_log("could not retrieve topic list")
            assert tool.stop(signal.SIGTERM) == 0
    assert "Traceback" not in tool.log
    assert not list(folder.iterdir())
