"""Who may own a name in a shared folder: real nsqds that start at once, one after the other, and by mistake."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from bench.ports import take_port
from nsqcommon.remote.framing import MAGIC
from tests.support.process import Nsqd, SteadyNsqd, eventually, launch, needs_module, run_to_end

CLAIMANTS = 5


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


def options_of(shared: Path) -> tuple[str, ...]:
    return (f"remote=file://{shared}", "remote-name=orders", "remote-interval=2ms", "ack=remote")


def refused_start(data_path: Path, shared: Path, *more: str) -> tuple[int, str]:
    """Return the exit status and the last line of a start that ends by itself."""
    data_path.mkdir(exist_ok=True)
    ended = run_to_end(
        f"--data-path={data_path}",
        "--tcp-address=127.0.0.1:0",
        "--http-address=127.0.0.1:0",
        *(f"--{it}" for it in (*options_of(shared), *more)),
    )
    return ended.returncode, ended.stderr.splitlines()[-1]


def test_a_second_nsqd_of_one_name_is_refused_while_the_first_answers(tmp_path: Path, shared: Path) -> None:
    with SteadyNsqd(tmp_path / "a", *options_of(shared), "broadcast-address=127.0.0.1") as nsqd:
        host, port = nsqd.http_address
        status, line = refused_start(tmp_path / "b", shared)
        assert status == 1
        assert f"orders is in use by process {nsqd.pid} on " in line
        assert f"it answers at {host}:{port}" in line
        nsqd.connect().publish("t", b"the owner goes on")


def test_after_a_clean_stop_another_machine_goes_on_at_once_and_reads_no_slots(tmp_path: Path, shared: Path) -> None:
    with SteadyNsqd(tmp_path / "a", *options_of(shared)) as nsqd:
        nsqd.connect().publish("t", b"1")
        assert nsqd.stop() == 0
    with Nsqd(tmp_path / "b", *options_of(shared)) as elsewhere:
        assert "watching" not in elsewhere.log
        assert "topology.json is missing" not in elsewhere.log, "the root has it"
        assert elsewhere.topic("t")["depth"] == 1
        assert [it.name for it in shared.glob("orders/wal/*/*")].count("00000000") <= 4, "fences, the commit, and ours"


def test_of_several_starts_at_once_one_serves(tmp_path: Path, shared: Path) -> None:
    running = []
    for number in range(CLAIMANTS):
        (tmp_path / f"{number}").mkdir()
        running.append(
            launch(
                f"--data-path={tmp_path / str(number)}",
                "--tcp-address=127.0.0.1:0",
                "--http-address=127.0.0.1:0",
                *(f"--{it}" for it in options_of(shared)),
                environ={},
                program="nsqd",
            )
        )
    try:
        eventually(lambda: sum(it.poll() is not None for it in running) == CLAIMANTS - 1)
        ended = [it.wait() for it in running if it.poll() is not None]
        assert set(ended) <= {1, 3}
    finally:
        for it in running:
            it.kill()
            it.communicate()


def test_the_data_path_of_another_node_is_refused(tmp_path: Path, shared: Path) -> None:
    with Nsqd(tmp_path / "other") as other:
        other.connect().publish("t", b"of another node")
    with Nsqd(tmp_path / "a", *options_of(shared)):
        pass
    status, line = refused_start(tmp_path / "other", shared, "take-over")
    assert status == 1
    assert f"orders in file://{shared} can't be owned: it belongs to node " in line


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (
            MAGIC[:3] + b"\x02" + bytes(20),
            "can't be owned: node: has format 2, this version reads 1: use a newer version of nsqd",
        ),
        (b"garbage", "can't be owned: node: 7 bytes are too few for an object"),
    ],
    ids=["newer", "garbage"],
)
def test_a_prefix_that_this_version_cannot_read_has_one_line(
    tmp_path: Path, shared: Path, damage: bytes, why: str
) -> None:
    (shared / "orders").mkdir()
    (shared / "orders/node").write_bytes(damage)
    status, line = refused_start(tmp_path / "a", shared)
    assert (status, why in line) == (1, True), line


def test_a_bucket_that_was_emptied_has_one_line_and_a_way_out(tmp_path: Path, shared: Path) -> None:
    with Nsqd(tmp_path / "a", *options_of(shared)) as nsqd:
        nsqd.connect().publish("t", b"kept on the disk")
        assert nsqd.stop() == 0
    shutil.rmtree(shared)
    shared.mkdir()
    status, line = refused_start(tmp_path / "a", shared)
    assert (
        status,
        "node: is missing, and this data path was in the store: has somebody emptied it, or do --remote" in line,
    ) == (
        1,
        True,
    )
    seeded = run_to_end("remote", "seed", f"file://{shared}", "--name=orders", f"--data-path={tmp_path / 'a'}")
    assert "the next start with --remote-name=orders stores all of" in seeded.stdout
    with Nsqd(tmp_path / "a", *options_of(shared)) as nsqd:
        nsqd.kill()
    with Nsqd(tmp_path / "b", *options_of(shared), "take-over") as elsewhere:
        assert elsewhere.topic("t")["depth"] == 1


def test_a_store_that_is_down_delays_the_start_which_can_be_stopped(tmp_path: Path) -> None:
    needs_module("obstore")
    process = launch(
        f"--data-path={tmp_path}",
        "--remote=s3://bucket",
        "--remote-name=orders",
        f"--remote-option=endpoint=http://127.0.0.1:{take_port()}",
        environ={"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"},
        program="nsqd",
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "waiting for the store to say who owns orders: s3://bucket: nothing listens there" in line
        process.send_signal(signal.SIGTERM)
        last = process.stderr.readlines()[-1]
        assert (process.wait(), "stopped while asking the store who owns orders" in last) == (1, True)
    finally:
        process.kill()
        process.communicate()


def test_what_the_store_never_got_goes_aside_and_can_be_published_again(tmp_path: Path, shared: Path) -> None:
    """The topic doesn't wait for the store, and the machine is cut off from it when another one takes over."""
    options = (*options_of(shared), "remote-delay=2ms", "topic-ack=fast=written", "take-over")
    elsewhere = shared.with_name("unmounted")
    with Nsqd(tmp_path / "a", *options) as nsqd:
        client = nsqd.connect()
        client.publish("fast", b"stored")
        eventually(lambda: b"stored" in b"".join(it.read_bytes() for it in shared.glob("orders/wal/*/*")))
        shared.rename(elsewhere)
        client.publish("fast", b"cut off")
        client.defer("fast", 60_000, b"cut off and deferred")
        nsqd.kill()
    elsewhere.rename(shared)
    with Nsqd(tmp_path / "b", *options) as nsqd:
        nsqd.connect().publish("fast", b"the other owner's")
        assert nsqd.stop() == 0
    with Nsqd(tmp_path / "a", *options) as nsqd:
        listed = run_to_end("remote", "aside", str(tmp_path / "a")).stdout.splitlines()
        assert [json.loads(it)["body"] for it in listed] == ["cut off", "cut off and deferred"]
        (folder,) = nsqd.stats()["remote"]["aside"]
        host, port = nsqd.http_address
        for _ in range(2):
            again = run_to_end("remote", "aside", str(tmp_path / "a"), f"--publish-to={host}:{port}")
            assert (again.returncode, again.stdout) == (0, "published 2 messages; 0 are uncertain\n"), again.stderr
        client = nsqd.connect()
        client.subscribe("fast", ready=10)
        assert sorted(client.bodies(3)) == [b"cut off", b"stored", b"the other owner's"]
        assert nsqd.channel("fast")["deferred_count"] == 1
    with Nsqd(tmp_path / "a", *options) as nsqd:
        assert nsqd.stats()["remote"]["aside"] == [folder], "which this start has found"
        shutil.rmtree(folder)
        assert nsqd.stats()["remote"]["aside"] == []
