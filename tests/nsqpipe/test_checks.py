"""What cannot work is reported in a line before Spark starts, with the right exit status, and leaves nothing behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from bench.ports import take_port
from nsqpipe import checks
from nsqpipe.cli import app
from nsqpipe.jobs import Bench, Land
from nsqpipe.lag import set_offsets
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.stores.storage import place_of
from tests.pyspark_nsq.test_missing_nodes import three_at
from tests.support.process import ROOT, SOURCES, Nsqd, Nsqlookupd
from tests.support.spark import KEPT, lane_of, numbered, publish
from tests.support.spark import address as http_address

LIMIT: Final = 30.0  # seconds; `python -m tests.nsqpipe.test_checks` prints how long the cases take here


@dataclass(frozen=True)
class World:
    """A cluster of one node, and a folder with all sorts of obstacles."""

    nsqd: Nsqd
    lookupd: Nsqlookupd
    folder: Path

    @property
    def here(self) -> str:
        return f"--nsqd={http_address(self.nsqd)}"

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def land(self, *words: str, table: str = "table", topic: str = "orders") -> list[str]:
        return ["land", self.here, f"--topic={topic}", f"--table={self.path(table)}", "--until-now", *words]


def build(folder: Path, nsqd: Nsqd) -> None:
    publish(nsqd, "orders", numbered(3))
    (folder / "file").write_text("no folder")
    (folder / "parquet" / "_spark_metadata").mkdir(parents=True)
    (folder / "bad.toml").write_text("[[rule]]\nthen = 'quarantine'\n")
    (folder / "latin.toml").write_text("[[rule]]\ncheck = \"a = 'ä'\"\n", "latin-1")
    (folder / "bad.avsc").write_text('{"type": "recrod"}')
    (folder / "dangling").symlink_to("nowhere")
    write_deltalake(folder / "other", pa.table({"topic": ["t"], "body": ["text"]}), partition_by=["topic"])
    write_deltalake(folder / "flat", pa.table({"topic": ["t"], "price": [1.5]}))
    write_deltalake(folder / "words", pa.table({"topic": ["t"], "value": [{"a": "b"}]}), partition_by=["topic"])
    write_deltalake(folder / "new.quarantine", pa.table({"topic": ["t"], "error": [7]}), partition_by=["topic"])
    foreign = place_of(str(folder / "foreign.checkpoint"))
    set_offsets(foreign, {lane_of(nsqd, "orders").replace("/orders/", "/clicks/"): 1})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with Nsqlookupd() as lookupd, Nsqd(tmp_path_factory.mktemp("data"), KEPT) as nsqd:
        build(folder, nsqd)
        yield World(nsqd, lookupd, folder)


Words = Callable[[World], list[str]]
AVRO: Final = ("--decoder=avro", "--schema=a int")
JSON: Final = ("--decoder=json", "--schema=a int")

# name: (command, exit status, message)
CASES: Final[dict[str, tuple[Words, int, str]]] = {
    "no such topic": (lambda w: w.land(topic="ordrs"), 1, "there is no topic ordrs at 127.0.0.1:"),
    "nsqlookupd is down": (
        lambda w: ["land", f"--lookupd=127.0.0.1:{take_port()}", "--topic=orders", f"--table={w.path('t')}"],
        1,
        "cannot be reached: [Errno 111] Connection refused",
    ),
    "nsqd is down": (
        lambda w: [*w.land(), f"--nsqd=127.0.0.1:{take_port()}"],
        1,
        "cannot be reached: [Errno 111] Connection refused",
    ),
    "the TCP port of nsqd": (
        lambda w: ["land", f"--nsqd=127.0.0.1:{w.nsqd.tcp[1]}", "--topic=orders", f"--table={w.path('t')}"],
        1,
        "is a TCP port: the HTTP port is needed",
    ),
    "the TCP port of nsqlookupd": (
        lambda w: ["land", f"--lookupd=127.0.0.1:{w.lookupd.tcp[1]}", "--topic=orders", f"--table={w.path('t')}"],
        1,
        "is a TCP port: the HTTP port is needed",
    ),
    "no port at all": (
        lambda w: ["land", "--nsqd=localhost", "--topic=orders", f"--table={w.path('t')}"],
        2,
        "'localhost' is not an address: expected host:port",
    ),
    "a misspelt option of the source": (
        lambda w: w.land("--source-option=startingofset=latest"),
        2,
        "the source has no option startingofset; did you mean startingOffsets?",
    ),
    "an option that is no number": (
        lambda w: w.land("--source-option=maxRowsPerTrigger=many"),
        2,
        "maxRowsPerTrigger: expected a whole number",
    ),
    "no name of a topic": (lambda w: w.land(topic="a b"), 2, "'a b' is neither a valid name of a topic"),
    "no interval": (
        lambda w: w.land("--every=abc"),
        2,
        "'--every': expected a duration, as in '10 seconds', not 'abc'",
    ),
    "no decoder": (lambda w: w.land("--decoder=jsn"), 2, "expected raw, json, msgpack, avro, protobuf, not 'jsn'"),
    "no format": (lambda w: w.land("--format=x"), 2, "expected delta, parquet, iceberg, not 'x'"),
    "no master": (lambda w: w.land("--master=lokal"), 2, "--master 'lokal' is not a master"),
    "a master that is down": (
        lambda w: w.land(f"--master=spark://127.0.0.1:{take_port()}"),
        1,
        "cannot be reached: Connection refused",
    ),
    "the table is a file": (lambda w: w.land(table="file"), 1, "/file is not a folder"),
    "the table is under a file": (lambda w: w.land(table="file/table"), 1, "/file is not a folder"),
    "the table cannot be written": (
        lambda w: ["land", w.here, "--topic=orders", "--table=/proc/table"],
        1,
        "/proc cannot be written to",
    ),
    "the table is a broken link": (lambda w: w.land(table="dangling"), 1, "/dangling is not a folder"),
    "the checkpoint is under a file": (
        lambda w: w.land(f"--checkpoint={w.path('file')}/c"),
        1,
        "--checkpoint",
    ),
    "the table has another format": (lambda w: w.land(table="parquet"), 1, "is parquet, not delta"),
    "the table has other columns": (lambda w: w.land(table="other"), 1, "body: binary is not string; name another"),
    "the table is not partitioned": (lambda w: w.land(table="flat"), 1, "flat is partitioned by nothing"),
    "the table has other fields": (
        lambda w: w.land(*JSON, table="words"),
        1,
        "value.a: int is not string; name another",
    ),
    "the quarantine has other columns": (lambda w: w.land(*JSON, table="new"), 1, "error: string is not bigint; name"),
    "no such registry": (
        lambda w: w.land(*AVRO, f"--registry=http://127.0.0.1:{take_port()}"),
        1,
        "--registry: ",
    ),
    "descriptors of no message": (
        lambda w: w.land("--decoder=protobuf", "--schema=a int", "--message=shop.Order"),
        1,
        "--decoder protobuf needs --descriptors",
    ),
    "the checkpoint is another topic's": (
        lambda w: w.land(table="foreign"),
        1,
        "is for topic clicks, and this job reads orders",
    ),
    "no rule file": (lambda w: w.land(f"--rules={w.path('none.toml')}"), 1, "No such file"),
    "rules that are no UTF-8": (lambda w: w.land(f"--rules={w.path('latin.toml')}"), 1, "can't decode byte 0xe4"),
    "a rule without a check": (lambda w: w.land(f"--rules={w.path('bad.toml')}"), 1, "rule 1 needs a check"),
    "no Avro schema": (
        lambda w: w.land(*AVRO, f"--avro-schema={w.path('bad.avsc')}"),
        1,
        "is not an Avro schema",
    ),
    "no file with the Avro schema": (
        lambda w: w.land(*AVRO, f"--avro-schema={w.path('none.avsc')}"),
        1,
        "No such file",
    ),
    "a port that is taken": (
        lambda w: w.land(f"--metrics-address=127.0.0.1:{w.nsqd.http_address[1]}"),
        1,
        "Address already in use",
    ),
    "results in a folder": (
        lambda w: ["aggregate", w.here, "--topic=orders", f"--results={w.folder}", f"--checkpoint={w.path('c')}"],
        1,
        "is a folder, but should be a file",
    ),
    "a replay of no table": (
        lambda w: ["replay", w.here, f"--table={w.path('none')}", "--destination-topic=again"],
        1,
        "there is no table at",
    ),
    "a replay to no topic": (
        lambda w: ["replay", w.here, f"--table={w.path('other')}", "--destination-topic=a b"],
        2,
        "'a b' is not a valid name of a topic",
    ),
}


def run(words: list[str], temporary: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, because its imports matter."""
    return subprocess.run(
        [sys.executable, "-m", "nsqpipe", *words],
        env={**os.environ, "PYTHONPATH": SOURCES, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def what_lies_in(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("Spark was to be started")


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_said_in_one_line_before_spark_starts(
    name: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqpipe.session.open_session", refuse)
    words, status, complaint = CASES[name]
    before = what_lies_in(world.folder)
    began = time.monotonic()
    result = CliRunner().invoke(app, words(world))
    assert result.exit_code == status, result.stderr
    (line,) = result.stderr.splitlines()
    assert complaint in line
    assert result.stdout == ""
    assert what_lies_in(world.folder) == before
    assert time.monotonic() - began < LIMIT


@pytest.mark.parametrize("name", ["no such topic", "the table has other columns"])
def test_a_process_of_its_own_is_as_quick_and_leaves_nothing(name: str, world: World, tmp_path: Path) -> None:
    words, status, complaint = CASES[name]
    began = time.monotonic()
    done = run(words(world), tmp_path)
    assert time.monotonic() - began < LIMIT
    assert done.returncode == status
    assert done.stderr.count("\n") == 1
    assert complaint in done.stderr
    assert what_lies_in(tmp_path) == []


IMPORTED_BY_THREADS: Final = """
import sys, threading
from nsqpipe import cli

class Watch:
    def find_spec(self, name, path, target=None):
        if name.startswith(("nsqpipe", "pyspark")) and threading.current_thread() is not threading.main_thread():
            late.append(name)

late = []
sys.meta_path.insert(0, Watch())
try:
    cli.app(sys.argv[1:])
finally:
    print("late:", *late)
"""


@pytest.mark.parametrize("flag", ["--master=spark", "--remote=sc"])
def test_what_is_looked_at_in_a_thread_imports_nothing(flag: str, world: World) -> None:
    """If the look takes too long, the command goes on, and would see half of a module that the thread imports."""
    command = [sys.executable, "-c", IMPORTED_BY_THREADS, *world.land(f"{flag}://127.0.0.1:{take_port()}")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False, cwd=ROOT)
    assert "cannot be reached: Connection refused" in done.stderr
    assert done.stdout == "late:\n"


def test_what_can_work_is_let_through(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqpipe.session.open_session", refuse)
    before = what_lies_in(world.folder)
    result = CliRunner().invoke(app, world.land("--every=1 minute 30 seconds", "--decoder=json", "--schema=a int"))
    assert "Spark was to be started" in result.stderr
    assert what_lies_in(world.folder) == before


@pytest.mark.parametrize(("master", "remote"), [("spark://somewhere:7077", ""), ("local[*]", "sc://somewhere")])
def test_a_name_that_nobody_resolves_is_not_waited_for(
    master: str, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, may_answer = threading.Event(), threading.Event()

    def unanswered(*_: object, **__: object) -> NoReturn:  # threads of other tests may call this, too
        asked.set()
        may_answer.wait(LIMIT)
        raise socket.gaierror(socket.EAI_AGAIN, "nobody answers")

    monkeypatch.setattr(socket, "getaddrinfo", unanswered)
    began = time.monotonic()
    checks._spark(Land(topic=("orders",), nsqd=("127.0.0.1:1",), table="t", master=master, remote=remote))
    assert asked.is_set()
    assert time.monotonic() - began < LIMIT
    may_answer.set()


def test_a_node_that_is_missing_stops_a_batch_and_a_stream_only_where_all_are_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_PATIENCE", LIMIT)
    with three_at(tmp_path) as three:
        three.nodes[1].kill()
        three.wait_for(1)
        land = Land(topic=("orders",), lookupd=(three.where,), table=str(tmp_path / "table"))
        checks.check(land)
        with pytest.raises(PipeFailed, match=r"all nodes have to be there: .* cannot be reached"):
            checks.check(replace(land, require_all=True))
        with pytest.raises(PipeFailed, match=r"2 nodes have to be there, and 1 are: .* cannot be reached"):
            checks.check(replace(land, nodes=2))
        with pytest.raises(PipeFailed, match=r"cannot be reached: .*failOnDataLoss=false"):
            checks.check(Bench(topic=("orders",), lookupd=(three.where,)))


def main() -> None:
    """Print the message of each case, and how long it took."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as name, Nsqlookupd() as lookupd, Nsqd(Path(name) / "data", KEPT) as nsqd:
        folder = Path(name) / "world"
        folder.mkdir()
        build(folder, nsqd)
        world = World(nsqd, lookupd, folder)
        for case, (words, _, _) in CASES.items():
            before, began = os.times(), time.monotonic()
            done = run(words(world), Path(name))
            after = os.times()
            cpu = after.children_user + after.children_system - before.children_user - before.children_system
            last = done.stderr.splitlines()[-1].replace(name, "")
            sys.stdout.write(
                f"{time.monotonic() - began:5.2f} s, {cpu:4.2f} s of processor: {case}: {done.returncode} {last}\n"
            )


if __name__ == "__main__":
    main()
