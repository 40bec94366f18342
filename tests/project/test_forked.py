"""A program that is forked (tests/support/forked.py) is as one that was started by `python -m`."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.nsqd.whole.workers import Workers
from tests.planted.planting import with_bug
from tests.support import forked
from tests.support.open_files import many_files
from tests.support.process import PYTHONPATH, Nsqd, Nsqlookupd, eventually
from tests.support.zygote import FOR_ARGUMENTS

ENVIRON = {**os.environ, "PYTHONPATH": PYTHONPATH}
TAIL = ("nsqtools", "nsq_tail")


def command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", *words]


def both_ways(words: Sequence[str], monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[tuple[int, Any, Any]]:
    """Return how a program ends, and what it says, if it is forked and if it is not."""
    found = []
    for is_off in (False, True):
        monkeypatch.setattr(forked, "is_off", is_off)
        options.setdefault("env", ENVIRON)
        done = forked.run(command(*words), timeout=30, **options)
        found.append((done.returncode, done.stdout, done.stderr))
    return found


@pytest.mark.parametrize(
    "words",
    [
        ("nsqd", "--version"),
        ("nsqlookupd", "--nonsense"),
        ("nsqadmin", "--help"),
        ("nsqd", "--data-path=/does/not/exist"),
        (*TAIL, "--topic=t"),
        ("nsqtools", "nonsense"),
    ],
    ids=" ".join,
)
def test_it_says_the_same_and_ends_alike(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (status, out, err), (real_status, real_out, real_err) = both_ways(words, monkeypatch, text=True)
    assert (status, out) == (real_status, real_out)
    assert without_times(err) == without_times(real_err)


def without_times(text: str) -> list[str]:
    return [re.sub(r"^(\[\w+\] )?[\d/]+ [\d:.]+ ", "", line) for line in text.splitlines()]


def test_it_has_its_own_folder_environment_zone_and_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.toml").write_text('log_prefix = "[of the file] "\n')
    environ = {**ENVIRON, "NSQD_DATA_PATH": "/proc/of-the-environment", "TZ": "Etc/GMT-9"}
    hours = set()
    for _, _, log in both_ways(("nsqd", "--config=a.toml"), monkeypatch, cwd=tmp_path, env=environ, text=True):
        assert re.fullmatch(
            r"\[of the file\] .+ FATAL: .+ open /proc/of-the-environment: no such file or directory\n", log
        )
        hours.add(datetime.strptime(log[14:27], "%Y/%m/%d %H"))
    here = datetime.now(timezone(timedelta(hours=9))).replace(tzinfo=None)
    assert all(timedelta(0) <= here - hour < timedelta(hours=1, minutes=1) for hour in hours)


def test_it_sees_the_modules_of_its_folder_or_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_this_folder.py").write_text("DATABASES = {}; SECRET_KEY = 'x'; INSTALLED_APPS = []\n")
    words = ("-m", "django", "check", "--settings=of_this_folder")
    for options, status in (((), 0), (("-P",), 1)):
        for is_off in (False, True):
            monkeypatch.setattr(forked, "is_off", is_off)
            done = forked.run([sys.executable, *options, *words], env=ENVIRON, cwd=tmp_path, text=True, timeout=30)
            assert done.returncode == status, done.stderr
            assert status == 0 or "No module named 'of_this_folder'" in done.stderr


def test_it_has_a_session_of_its_own_if_that_was_asked_for() -> None:
    for has_own in (False, True):
        with forked.Popen(
            command(*TAIL, "--topic=t", "--lookupd-http-address=127.0.0.1:1"),
            env=ENVIRON,
            stderr=subprocess.PIPE,
            start_new_session=has_own,
        ) as it:
            try:
                assert it.stderr is not None
                assert it.stderr.readline()  # it has begun
                assert it._status is not None, "it was not forked"
                assert (os.getsid(it.pid) == it.pid) == has_own
            finally:
                it.kill()


def test_it_reads_what_it_is_sent_and_opens_no_more_than_it_was_given(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "one") as one:
        words = command("nsqtools", "to_nsq", f"--nsqd-tcp-address=127.0.0.1:{one.tcp[1]}", "--topic=t")
        done = forked.run(words, env=ENVIRON, input=b"one\ntwo\n", timeout=30)
        assert done.returncode == 0, done.stderr
        assert one.topic("t")["message_count"] == 2
        with Nsqd(tmp_path / "two") as two:
            descriptors = [os.readlink(f"/proc/{two.pid}/fd/{number}") for number in range(3)]
            assert descriptors[:2] == ["/dev/null", "/dev/null"]
            assert two.descriptors <= one.descriptors + 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_how_it_has_ended_is_known(number: signal.Signals) -> None:
    with Nsqlookupd() as lookupd:
        assert lookupd.stop(number) == (0 if number == signal.SIGTERM else -number)


def test_it_is_polled_and_waited_for_in_time() -> None:
    with forked.Popen(
        command(*TAIL, "--topic=t", "--lookupd-http-address=127.0.0.1:1"), env=ENVIRON, stderr=subprocess.PIPE
    ) as it:
        assert it.stderr is not None
        assert it.stderr.readline()  # it has begun
        assert it.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            it.wait(0.01)
        it.kill()
        assert it.wait(30) == -signal.SIGKILL
        assert it.poll() == -signal.SIGKILL


def test_it_is_polled_by_a_process_that_has_many_files_open() -> None:
    with many_files(), ExitStack() as files:
        for _ in range(1024):  # `select.select` accepts only lower descriptors
            files.enter_context(open(os.devnull, encoding="utf-8"))
        with forked.Popen(command("nsqd", "--version"), env=ENVIRON, stdout=subprocess.DEVNULL) as it:
            assert eventually(lambda: it.poll() is not None)
        assert it.returncode == 0


def parent_of(daemon: Nsqd | Nsqlookupd | Workers) -> int:
    return parent_of_process(daemon.pid)


def parent_of_process(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_workers_of_nsqd_are_forked_by_the_zygote_of_their_supervisor(tmp_path: Path) -> None:
    with Workers(tmp_path, 2) as nsqd:
        assert {parent_of_process(nsqd.worker_pid(it)) for it in range(2)} == {parent_of(nsqd)}


def test_modules_that_only_some_arguments_need_are_there() -> None:
    """A start that lacks one imports it by itself, so nobody would notice."""
    names = {name for by_argument in FOR_ARGUMENTS.values() for names in by_argument.values() for name in names}
    assert [name for name in names if find_spec(name) is None] == []


# A zygote of nsqlookupd has the fewest imports.


def test_two_starts_are_of_one_zygote_and_what_python_reads_early_makes_another() -> None:
    other = "8" if os.environ.get("PYTHONHASHSEED") == "7" else "7"
    with (
        Nsqlookupd() as a,
        Nsqlookupd() as b,
        Nsqlookupd(environ={"PYTHONHASHSEED": other}) as c,
        Nsqlookupd(environ={"LD_PRELOAD": ""}) as d,
    ):
        assert parent_of(a) == parent_of(b) != os.getpid()
        assert parent_of(c) not in (parent_of(a), os.getpid())
        assert parent_of(d) == os.getpid()


SHARES = """
import os, sys
from pathlib import Path
from tests.support import forked
from tests.support.open_files import many_files

forked.share()
for _ in range(2):
    if not os.fork():
        command = [sys.executable, "-P", "-m", *sys.argv[1:]]
        with forked.Popen(command, env=dict(os.environ), stderr=-1) as it:
            it.stderr.readline()  # it has begun
            print(Path(f"/proc/{it.pid}/stat").read_text().rpartition(")")[2].split()[1], flush=True)
            it.kill()
        os._exit(0)
    os.wait()
"""


def test_forks_of_one_process_share_a_zygote_that_ends_with_the_last_of_them() -> None:
    words = (*TAIL, "--topic=t", "--lookupd-http-address=127.0.0.1:1")
    done = subprocess.run([sys.executable, "-P", "-c", SHARES, *words], env=ENVIRON, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    one, other = done.stdout.split()
    assert one == other
    eventually(lambda: not Path(f"/proc/{one}").exists())


def test_a_bug_is_planted_only_in_the_child_that_asks_for_it(tmp_path: Path) -> None:
    drops, another = with_bug("one message of a hundred is dropped"), with_bug("the relay dies before the mark")
    with (
        Nsqd(tmp_path / "bad", environ=drops) as bad,
        Nsqd(tmp_path / "other", environ=another) as other,
        Nsqd(tmp_path / "good") as good,
    ):
        assert parent_of(bad) == parent_of(other)
        assert parent_of(bad) not in (parent_of(good), os.getpid())
        for nsqd in (bad, other, good):
            nsqd.connect().publish("t", *(b"%d" % number for number in range(200)))
            nsqd.connect().subscribe("t", "c", ready=200)
            eventually(lambda nsqd=nsqd: nsqd.channel("t")["depth"] == 0)
        arrived = [nsqd.channel("t")["in_flight_count"] for nsqd in (bad, other, good)]
        assert arrived[0] < 200
        assert arrived[1:] == [200, 200]


def test_programs_that_are_started_at_the_same_time_are_not_mixed_up() -> None:
    def version_of(program: str) -> str:
        done = forked.run(command(program, "--version"), env=ENVIRON, text=True, timeout=30)
        return str(done.stdout).split()[0]

    programs = ["nsqd", "nsqlookupd"] * 10
    with ThreadPoolExecutor(len(programs)) as threads:
        assert list(threads.map(version_of, programs)) == programs


def test_a_program_whose_zygote_was_killed_has_not_ended_well_and_the_next_one_starts(tmp_path: Path) -> None:
    environ = {"NSQ_NOBODY_READS": str(tmp_path)}  # so that the zygote is this test's own
    with Nsqlookupd(environ=environ) as it:
        pid = it.pid
        assert parent_of(it) != os.getpid()
        os.kill(parent_of(it), signal.SIGKILL)
        assert it.wait() == -signal.SIGKILL
        eventually(lambda: not Path(f"/proc/{pid}").exists())
        with pytest.raises(forked.ZygoteHasGone):
            it.start()
        it.start()
        assert it.http("GET", "/ping").status == 200


def test_a_umask_is_inherited() -> None:
    def umask_of(daemon: Nsqlookupd) -> int:
        status = Path(f"/proc/{daemon.pid}/status").read_text()
        return int(status.partition("Umask:")[2].split()[0], 8)

    before = os.umask(0o077)
    try:
        with Nsqlookupd() as it:
            assert umask_of(it) == 0o077
    finally:
        os.umask(before)
    with Nsqlookupd() as it:
        assert umask_of(it) == before


def test_children_of_a_zygote_choose_their_next_task_differently(tmp_path: Path) -> None:
    asked = [
        "-c",
        "import tests.support.zygote as it, trio; trio._core._run._r.seed(1)\n"
        "import json, os\n"
        "it._become({'folder': '/', 'environ': dict(os.environ), 'arguments': ['x'], 'command': ['x']}, [])\n"
        "print(trio._core._run._r.random())",
    ]
    said = {
        subprocess.run([sys.executable, *asked], env=ENVIRON, capture_output=True, check=True).stdout for _ in range(3)
    }
    assert len(said) == 3


def test_a_terminal_is_for_a_real_start(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, its = pty.openpty()
    try:
        assert not forked._can_fork(command("nsqd"), {}, [its, its, its])
        assert forked._can_fork(command("nsqd"), {}, [0, 1, 2]) != os.isatty(0)
    finally:
        os.close(mine)
        os.close(its)
