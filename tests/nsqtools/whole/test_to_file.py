"""nsq_to_file with a real nsqd."""

from __future__ import annotations

import gzip
import random
import re
import resource
import signal
import socket
from pathlib import Path

import pytest

from tests.e2e import archive_kill9
from tests.support.folder_contents import contents_of
from tests.support.lengths import sized
from tests.support.process import Nsqd, Nsqlookupd, eventually
from tests.support.tools import LIMIT, Tool, address, last_line, run_tool


def archive(nsqd: Nsqd, topic: str, folder: Path, *arguments: str) -> Tool:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=nsq_to_file")
    place = f"--nsqd-tcp-address={address(nsqd.tcp)}"
    return Tool("nsq_to_file", f"--topic={topic}", place, f"--output-dir={folder}", *arguments)


def channel(nsqd: Nsqd, topic: str) -> tuple[int, int, int]:
    """Return depth, in flight, and the number of finished messages."""
    found = nsqd.channel(topic, "nsq_to_file")
    waiting, in_flight = found["depth"], found["in_flight_count"]
    return waiting, in_flight, found["message_count"] - waiting - in_flight


def texts(folder: Path) -> dict[str, bytes]:
    """Return the text of each file. One that is moved out of the folder meanwhile is not among them."""
    found = contents_of(folder).items()
    return {name: gzip.decompress(data) if name.endswith(".gz") else data for name, data in found}


def test_a_message_is_finished_when_it_is_in_the_file(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    with archive(nsqd, topic, tmp_path, "--sync-interval=1s") as tool:
        nsqd.connect().publish(topic, b"1", b"2", b"3")
        eventually(lambda: channel(nsqd, topic) == (0, 0, 3))
        (name,) = texts(tmp_path)
        assert re.fullmatch(rf"{topic}\.[\w-]+\.\d{{4}}-\d\d-\d\d_\d\d\.log", name)
        assert texts(tmp_path)[name] == b"1\n2\n3\n"
        assert tool.stop(signal.SIGTERM) == 0
        lines = tool.log.splitlines()
        form = r"\[nsq_to_file\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: \[" + topic + r"/nsq_to_file\] "
        assert any(re.fullmatch(form + f"opening {tmp_path}/{name}", line) for line in lines)
        assert any(re.fullmatch(form + "syncing 1 records to disk", line) for line in lines)


def test_what_is_not_synced_yet_is_not_finished_and_is_when_it_stops(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    with archive(nsqd, topic, tmp_path, "--sync-interval=1h", "--filename-format=f") as tool:
        nsqd.connect().publish(topic, b"1", b"2", b"3")
        eventually(lambda: channel(nsqd, topic) == (0, 2, 1))
        assert texts(tmp_path) == {"f": b"1\n"}
        assert tool.stop(signal.SIGTERM) == 0
    assert texts(tmp_path) == {"f": b"1\n2\n3\n"}
    assert channel(nsqd, topic) == (0, 0, 3)


def test_with_two_in_flight_each_is_synced(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    with archive(nsqd, topic, tmp_path, "--sync-interval=1h", "--max-in-flight=2") as tool:
        nsqd.connect().publish(topic, b"1", b"2", b"3")
        eventually(lambda: channel(nsqd, topic) == (0, 0, 3))
        eventually(lambda: tool.log.count("syncing 1 records to disk") == 3)


def test_compressed_files_are_whole_after_each_sync(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    for start in (1, 4):
        with archive(nsqd, topic, tmp_path, "--gzip", "--sync-interval=100ms") as tool:
            nsqd.connect().publish(topic, *(b"%d" % number for number in range(start, start + 3)))
            eventually(lambda start=start: channel(nsqd, topic) == (0, 0, start + 2))
            assert b"".join(texts(tmp_path).values()).endswith(b"%d\n" % (start + 2))
            assert tool.stop(signal.SIGINT) == 0
    assert list(texts(tmp_path).values()) == [b"1\n2\n3\n", b"4\n5\n6\n"]
    assert [re.search(r"-(\d{6})\..*\.gz$", name)[1] for name in texts(tmp_path)] == ["000000", "000001"]  # type: ignore[index]
    assert "working file already exists: " in tool.log


def test_files_are_moved_when_they_are_finished_also_by_a_hang_up(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    with archive(nsqd, topic, out, f"--work-dir={work}", "--sync-interval=100ms", "--filename-format=f<REV>") as tool:
        nsqd.connect().publish(topic, b"1")
        eventually(lambda: channel(nsqd, topic) == (0, 0, 1))
        assert (texts(out), texts(work)) == ({}, {"f-000000": b"1\n"})
        tool.signal(signal.SIGHUP)
        # The next tick opens an empty file, as quiet topics have one.
        eventually(lambda: texts(out) == {"f-000000": b"1\n"} and texts(work) in ({}, {"f-000001": b""}))
        tool.wait_for_log(f"moving finished file {work}/f-000000 to {out}/f-000000")
        nsqd.connect().publish(topic, b"2")
        eventually(lambda: channel(nsqd, topic) == (0, 0, 2))
        assert texts(work) == {"f-000001": b"2\n"}
        assert tool.stop(signal.SIGTERM) == 0
    assert texts(out) == {"f-000000": b"1\n", "f-000001": b"2\n"}


def test_topics_are_found_by_a_pattern_also_with_one_nsqlookupd_down(tmp_path: Path) -> None:
    with socket.socket() as unused, Nsqlookupd() as lookupd:
        unused.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        options = (f"lookupd-tcp-address={address(lookupd.tcp)}", "broadcast-address=127.0.0.1")
        with Nsqd(tmp_path / "nsqd", *options) as nsqd:
            for topic in ("a1", "ba1"):
                nsqd.connect().publish(topic, topic.encode())
            eventually(lambda: len(lookupd.get("/topics")["topics"]) == 2)
            with Tool(
                "nsq_to_file", "--topic-pattern=^a", "--topic-refresh=100ms", "--sync-interval=100ms",
                "--filename-format=<TOPIC>", f"--output-dir={tmp_path}/out",
                f"--lookupd-http-address={address(lookupd.http_address)}", f"--lookupd-http-address={nobody}",
            ) as tool:  # fmt: skip
                eventually(lambda: texts(tmp_path / "out") == {"a1": b"a1\n"}, timeout=LIMIT)
                nsqd.connect().publish("a2", b"later")
                eventually(lambda: texts(tmp_path / "out") == {"a1": b"a1\n", "a2": b"later\n"}, timeout=LIMIT)
                assert tool.log.count("WARNING: skipping topic ba1 (doesn't match pattern ^a)") == 1
                tool.wait_for_log(f"ERROR: could not retrieve topic list: {nobody}/topics")
                assert tool.stop(signal.SIGTERM) == 0


def test_kill_9_loses_nothing(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)  # noqa: T201
    settings = len(archive_kill9.SETTINGS)
    archive_kill9.run(tmp_path, kills=sized(short=settings, long=3 * settings), seed=seed)


def test_a_disk_that_takes_no_more_ends_it_and_nothing_is_finished(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    with archive(nsqd, topic, tmp_path, "--sync-interval=1h") as tool:
        nsqd.connect().publish(topic, b"fits")
        eventually(lambda: channel(nsqd, topic) == (0, 0, 1))
        resource.prlimit(tool.process.pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        nsqd.connect().publish(topic, b"x" * 1000)
        eventually(lambda: channel(nsqd, topic) == (0, 1, 1))
        tool.signal(signal.SIGHUP)  # makes it write its buffer
        assert tool.wait() == 1
        assert re.search(r" FATAL: writing message to disk: write .*: file too large$", tool.log.rstrip())
        assert "Traceback" not in tool.log
    eventually(lambda: channel(nsqd, topic) == (1, 0, 1))


FILE = "--topic=t", "--nsqd-tcp-address=127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["xx", "yy"], "unknown arguments: [xx yy]"),
        (["--log-level=loud", "--version"], "--log-level is invalid"),
        (["--channel="], "--channel is required"),
        (["--http-client-connect-timeout=0"], "--http-client-connect-timeout should be positive"),
        (["--http-client-request-timeout=0"], "--http-client-request-timeout should be positive"),
        ([], "--nsqd-tcp-address or --lookupd-http-address required."),
        (
            ["--nsqd-tcp-address=a:1", "--lookupd-http-address=a:1"],
            "use --nsqd-tcp-address or --lookupd-http-address not both",
        ),
        (["--nsqd-tcp-address=a:1", "--gzip-level=0"], "invalid --gzip-level value (0), should be 1-9"),
        (["--nsqd-tcp-address=a:1"], "--topic or --topic-pattern required"),
        (
            ["--nsqd-tcp-address=a:1", "--topic-pattern=x"],
            "--lookupd-http-address must be specified when no --topic specified",
        ),
        ([*FILE, "--sync-interval=0"], "--sync-interval should be positive"),
        (
            [*FILE, "--gzip", "--filename-format=x"],
            "missing <REV> in --filename-format when gzip, rotation, or work dir enabled",
        ),
        ([*FILE, "--topic-pattern=("], "--topic-pattern is not a regular expression: missing ), unterminated subpattern at position 0"),
        ([*FILE, "--topic=bad topic"], "invalid topic name 'bad topic'"),
        ([*FILE, "--channel=bad channel"], "invalid channel name 'bad channel'"),
    ],
)  # fmt: skip
def test_what_nsq_to_file_refuses(arguments: list[str], line: str) -> None:
    result = run_tool("nsq_to_file", *arguments)
    assert (result.returncode, result.stdout, result.stderr.count(b"\n")) == (1, b"", 1)
    assert last_line(result.stderr) == line


def test_an_nsqd_that_is_not_there(tmp_path: Path) -> None:
    result = run_tool("nsq_to_file", *FILE, f"--output-dir={tmp_path}")
    assert (result.returncode, result.stderr.count(b"\n")) == (1, 1)
    assert result.stderr.decode().rstrip().endswith("FATAL: dial 127.0.0.1:1: connection refused")


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run_tool("nsq_to_file", *FILE, f"--output-dir={tmp_path}/file/x")
    assert (result.returncode, result.stderr.count(b"\n")) == (1, 1)
    assert result.stderr.decode().rstrip().endswith(f"unable to create dir: mkdir {tmp_path}/file: not a directory")


def test_a_bad_client_option_is_a_bad_flag() -> None:
    result = run_tool("nsq_to_file", "--consumer-opt=foo")
    assert result.returncode == 2
    assert result.stderr.startswith(
        b'nsq_to_file: invalid value "foo" for flag -consumer-opt: invalid option foo; see '
    )
