"""How nsqd starts, refuses to start, and stops: one clear line on stderr and the right exit status."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcommon.wire.commands import pub
from nsqd.log.data_path import as_json
from tests.support.brokers import StartNsqd
from tests.support.client import TIMEOUT, Client, Disconnected
from tests.support.process import run_to_end

# Two refusals and a run start a Python that imports nsqd; the others are forked from one that has (forked.py).
# tests/project/test_forked.py compares both ways, also for --version and --help.
real = pytest.mark.usefixtures("real_starts")

FATAL = re.compile(r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} FATAL: (?:failed to instantiate nsqd - )?(.*)")


def refusal(*arguments: str) -> str:
    """Return why nsqd does not start: the cause on its only FATAL line, which is also the last one."""
    done = run_to_end("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", *arguments)
    lines = done.stderr.splitlines()
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert len([line for line in lines if "FATAL" in line]) == 1, done.stderr
    found = FATAL.fullmatch(lines[-1])
    assert found, done.stderr
    return found[1]


# Options that print and end


def test_help_goes_to_stderr_and_is_no_failure() -> None:
    for flag in ("--help", "-h"):
        done = run_to_end(flag)
        assert (done.returncode, done.stdout) == (0, "")
        assert "-tcp-address" in done.stderr


def test_version_goes_to_stdout() -> None:
    done = run_to_end("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"nsqd v1\.3\.0 \(built w/python3\.\d+\.\d+\S*, nsq-suite \S+\)\n", done.stdout)


@pytest.mark.parametrize(
    ("flag", "line"),
    [
        ("--nonsense", "flag provided but not defined: -nonsense"),
        (
            "--msg-timeout=5",
            'invalid value "5" for flag -msg-timeout: expected a duration such as 500ms, 90s, 1h30m or 7d',
        ),
        ("--mem-queue-size=many", 'invalid value "many" for flag -mem-queue-size: parse error'),
        ("--deflate=maybe", 'invalid boolean value "maybe" for -deflate: parse error'),
        ("--tcp-adress=127.0.0.1:0", "flag provided but not defined: -tcp-adress (did you mean --tcp-address?)"),
        ("--topic_retention=t=7d", "flag provided but not defined: -topic_retention (did you mean --topic-retention?)"),
        ("extra", 'unexpected argument "extra"'),
    ],
)
def test_a_bad_flag_is_named_and_the_status_is_2(flag: str, line: str) -> None:
    done = run_to_end(flag)
    assert done.returncode == 2
    assert done.stderr == f"nsqd: {line}; see nsqd --help\n"


@real
def test_a_fresh_python_says_the_same_of_a_bad_flag_and_of_one_out_of_range(tmp_path: Path) -> None:
    done = run_to_end("--nonsense")
    assert (done.returncode, done.stderr) == (2, "nsqd: flag provided but not defined: -nonsense; see nsqd --help\n")
    assert refusal(f"--data-path={tmp_path}", "--node-id=1024").startswith("--node-id must be [0,1024)")


# Options that cannot work


def test_an_address_without_a_port_is_refused_and_makes_no_unix_socket(tmp_path: Path) -> None:
    text = refusal(f"--data-path={tmp_path}", "--tcp-address=127.0.0.1")
    assert "missing port in address; expected host:port, or ./127.0.0.1 for a unix socket of that name" in text


@pytest.mark.parametrize(
    ("flag", "cause"),
    [
        ("--node-id=1024", "--node-id must be [0,1024)"),
        ("--node-id=-1", "--node-id must be [0,1024)"),
        ("--max-deflate-level=10", "--max-deflate-level must be [1,9]"),
        ("--e2e-processing-latency-percentile=1.5", "invalid E2E processing latency percentile: 1.5"),
        ("--tls-required", "cannot require TLS client connections without TLS key and cert"),
        ("--auth-http-request-method=GET", "--auth-http-request-method must be post or get"),
    ],
)
def test_an_option_out_of_range_is_refused_in_nsq_s_words(tmp_path: Path, flag: str, cause: str) -> None:
    assert refusal(f"--data-path={tmp_path}", flag).startswith(cause)


@pytest.mark.parametrize("flag", ["--mem-queue-size=-1", "--sync-timeout=0", "--output-buffer-timeout=0"])
def test_what_makes_nsq_crash_later_is_refused_at_once(tmp_path: Path, flag: str) -> None:
    assert flag[2:].partition("=")[0] in refusal(f"--data-path={tmp_path}", flag)


# The data path


def test_a_missing_data_path_is_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert refusal(f"--data-path={missing}") == f"failed to lock data-path: open {missing}: no such file or directory"
    assert not missing.exists()


def test_a_file_is_no_data_path(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    assert refusal(f"--data-path={file}") == f"failed to lock data-path: open {file}: not a directory"
    assert file.read_text() == "precious"


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """Return a folder that we cannot write to, not even as root, to whom permissions do not apply."""
    path = tmp_path / "read-only"
    path.mkdir(mode=0o555)
    if os.getuid() != 0:
        yield path
        return
    mount = ["mount", "--bind", "-o", "ro", str(path), str(path)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("root without the right to mount")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_data_path_that_cannot_be_written_is_refused(read_only: Path) -> None:
    assert refusal(f"--data-path={read_only}") == f"failed to open data-path: {read_only} is not writable"


def test_a_second_nsqd_on_the_same_path_is_refused(start_nsqd: StartNsqd) -> None:
    first = start_nsqd()
    assert refusal(f"--data-path={first.data_path}") == (
        f"failed to lock data-path: cannot flock directory {first.data_path} - resource temporarily unavailable "
        "(possibly in use by another instance of nsqd)"
    )
    first.connect().publish("t", b"the first one does not mind")


def test_data_of_a_later_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_bytes(as_json({"format": 2}))
    assert f"{tmp_path / 'node.json'} has format 2, not 1" in refusal(f"--data-path={tmp_path}")


# Addresses and configuration


@pytest.mark.parametrize("which", ["tcp", "http"])
def test_a_port_in_use_is_named(tmp_path: Path, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        cause = refusal(f"--data-path={tmp_path}", f"--{which}-address={address}")
    assert cause.startswith(f"listen ({address}) failed - ")
    assert cause.endswith("address already in use")


@pytest.mark.parametrize("which", ["tcp", "http"])
@pytest.mark.parametrize("host", ["two..dots", "x" * 64 + ".example", "caf\xe9\udcff"])
def test_a_host_that_cannot_be_is_named(tmp_path: Path, which: str, host: str) -> None:
    cause = refusal(f"--data-path={tmp_path}", f"--{which}-address={host}:4150")
    assert cause.startswith("listen (")
    assert " failed - listen tcp" in cause
    assert ": lookup " in cause


def test_a_config_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    config = tmp_path / "nsqd.toml"
    config.write_text("tcp_address = ")
    assert refusal(f"--config={config}").startswith(f"failed to load config file {config} - ")


def test_a_missing_config_file_is_named(tmp_path: Path) -> None:
    config = tmp_path / "missing.toml"
    cause = refusal(f"--config={config}")
    assert cause.startswith(f"failed to load config file {config} - ")
    assert cause.endswith("no such file or directory")


def test_a_config_file_is_heeded_and_flags_beat_it(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    config = tmp_path / "nsqd.toml"
    config.write_text('max_rdy_count = 7\nmsg_timeout = "90s"\nlog_level = "debug"\n')
    nsqd = start_nsqd(f"config={config}", "log-level=info")
    found = {name: nsqd.http("GET", f"/config/{name}").body for name in ("max_rdy_count", "msg_timeout", "log_level")}
    assert found == {"max_rdy_count": b"7", "msg_timeout": b"90000000000", "log_level": b"2"}


# The end


@real
def test_sigterm_ends_it_in_the_middle_of_everything(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("drain-timeout=120s")  # longer than a stop may take here
    acknowledged: list[int] = []

    def publish() -> None:
        with Client(nsqd.tcp) as client:
            for number in range(1_000_000):
                try:
                    client.send(pub("t", b"%d" % number))
                    assert client.response() == b"OK"
                except (Disconnected, OSError):
                    return
                acknowledged.append(number)

    for _ in range(10):
        nsqd.connect().subscribe("t", "lazy", ready=1)
    nsqd.post("/channel/create?topic=t&channel=keeps")
    publisher = threading.Thread(target=publish)
    publisher.start()
    while len(acknowledged) < 1000:
        assert publisher.is_alive()
        time.sleep(0.01)
    assert nsqd.stop() == 0
    publisher.join(TIMEOUT)
    nsqd.start()
    assert nsqd.channel("t", "keeps")["depth"] in (len(acknowledged), len(acknowledged) + 1)
    assert nsqd.channel("t", "lazy")["depth"] == nsqd.channel("t", "keeps")["depth"]
