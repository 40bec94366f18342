"""What an operator gets wrong with `--remote`: one line says what, where and what to do, and nothing is lost by it.

After each mistake the node is started, or goes on, as if there had been none.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from nsqcommon.remote.framing import frame, unframe
from nsqcommon.wire import commands
from tests.support.engines import BUCKET, KEY
from tests.support.lengths import sized
from tests.support.needs import faketime, need
from tests.support.process import Nsqd, eventually, needs_module, run_to_end
from tests.support.small_disk import mounted_for_test
from tests.support.strict_s3 import StrictS3

HOUR = 3600.0
STORE = f"s3://{BUCKET}/nsq"
AHEAD, BEHIND = ({"FAKETIME": it} for it in ("+1h", "-1h"))
CLOCK = (
    "the store refuses requests because this machine's clock is off: set it, by NTP for example (RequestTimeTooSkewed"
)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.fixture
def store() -> Iterator[StrictS3]:
    needs_module("obstore")
    with StrictS3() as server:
        yield server


PATIENT: Final = "remote-timeout=60s"  # for a busy machine, where a store that is well may take longer than usual


def node_at(data_path: Path, *store: str, environ: Mapping[str, str] | None = None) -> Nsqd:
    return Nsqd(data_path, *options_of(*store), environ=environ)


def options_of(*store: str) -> tuple[str, ...]:
    """Return the options of a node; those that are given count before the usual ones."""
    return (
        *("remote-name=orders", "remote-interval=2ms", "remote-timeout=300ms", "take-over"),
        *("ack=remote", "topic-ack=fast=written", "max-req-timeout=24h"),
        *store,
    )


def refused_start(data_path: Path, *options: str, environ: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return the exit status and the only line of a start that ends by itself."""
    data_path.mkdir(exist_ok=True)
    words = (f"--data-path={data_path}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    ended = run_to_end(*words, *(f"--{it}" for it in options), environ=environ)
    (line,) = ended.stderr.splitlines()
    return ended.returncode, line.partition(" - ")[2]


def with_time(environ: Mapping[str, str]) -> Mapping[str, str]:
    need("libfaketime")
    return {**environ, "LD_PRELOAD": str(faketime(threads=True))}


def files_in(folder: Path) -> dict[Path, bytes]:
    return {it: it.read_bytes() for it in folder.rglob("*") if it.is_file() and it.name != "owner.json"}


# Starts


def test_a_start_that_the_store_refuses_has_one_line_and_changes_nothing(tmp_path: Path, store: StrictS3) -> None:
    def refused(environ: Mapping[str, str] | None = None, **options: str) -> str:
        before = files_in(tmp_path / "a"), {**store.objects}
        status, line = refused_start(tmp_path / "a", *options_of(*store.remote_options(**options)), environ=environ)
        assert (status, files_in(tmp_path / "a"), store.objects) == (1, *before)
        return line.removeprefix(f"{STORE}: ")

    with node_at(tmp_path / "a", *store.remote_options()) as nsqd:
        nsqd.connect().publish("t", b"1")
        assert nsqd.stop() == 0
    assert refused(access_key_id="who") == (
        "the store doesn't know this access key: correct AWS_ACCESS_KEY_ID (InvalidAccessKeyId)"
    )
    assert refused(secret_access_key="what") == (
        "the secret key is wrong: correct AWS_SECRET_ACCESS_KEY (SignatureDoesNotMatch)"
    )
    store.bucket = "another"
    assert refused() == "there is no bucket of this name: create it, or correct the URL (NoSuchBucket)"
    store.bucket = BUCKET
    for store.clock_is_off_by in (HOUR, -HOUR):
        assert refused().startswith(f"{CLOCK}; its clock says 20")
    store.clock_is_off_by = 0.0
    with node_at(tmp_path / "a", *store.remote_options()) as nsqd:
        assert nsqd.topic("t")["depth"] == 1
        nsqd.connect().publish("t", b"2")


@pytest.mark.parametrize("environ", sized(short=[AHEAD], long=[AHEAD, BEHIND]))
def test_a_machine_whose_clock_is_off_by_an_hour_has_one_line(
    tmp_path: Path, store: StrictS3, environ: Mapping[str, str]
) -> None:
    options = options_of(*store.remote_options())
    status, line = refused_start(tmp_path / "a", *options, environ=with_time(environ))
    assert (status, store.objects) == (1, {})
    assert line.startswith(f"{STORE}: {CLOCK}; its clock says 20")
    with node_at(tmp_path / "a", *store.remote_options()) as nsqd:
        nsqd.connect().publish("t", b"1")


def test_in_a_folder_each_owner_may_have_another_time(tmp_path: Path, shared: Path) -> None:
    """So an hour is no reason to lose a message, to deliver one early, or to take an owner for a stranger."""
    count = 0
    owners: Sequence[tuple[str, Mapping[str, str]]] = (
        ("a", {}),
        ("b", with_time(AHEAD)),
        ("a", with_time(BEHIND)),
        ("a", {}),
        ("b", with_time(BEHIND)),
    )
    for at, environ in owners[: sized(short=3, long=None)]:
        with node_at(tmp_path / at, f"remote=file://{shared}", environ=environ) as nsqd:
            client = nsqd.connect()
            client.publish("t", b"1")
            client.defer("t", 3 * 3_600_000, b"not before three hours")
            count += 1
            topic = nsqd.topic("t")
            assert topic["depth"] + sum(it["depth"] + it["deferred_count"] for it in topic["channels"]) == 2 * count
            if count == 1:
                nsqd.post("/channel/create?topic=t&channel=c")
            assert nsqd.channel("t")["deferred_count"] == count, "none is due"
            assert nsqd.stop() == 0


def test_another_name_for_a_data_path_has_one_line_and_makes_no_second_node(tmp_path: Path, shared: Path) -> None:
    with node_at(tmp_path / "a", f"remote=file://{shared}") as nsqd:
        nsqd.connect().publish("t", b"1")
        assert nsqd.stop() == 0
    before = files_in(tmp_path)
    status, line = refused_start(tmp_path / "a", *options_of(f"remote=file://{shared}"), "remote-name=bills")
    assert (status, files_in(tmp_path)) == (1, before)
    assert line == (
        f"bills in file://{shared} can't be owned: node: is missing, and this data path was in the store: has somebody "
        "emptied it, or do --remote and --remote-name lead elsewhere? If it is gone, nsqd remote seed has the next start "
        "store everything anew"
    )
    with node_at(
        tmp_path / "b",
        f"remote=file://{shared}",
    ) as nsqd:
        assert nsqd.topic("t")["depth"] == 1


def in_newer_format(old: bytes) -> bytes:
    return old[:3] + bytes([old[3] + 1]) + old[4:]


def of_new_kind(slot: bytes) -> bytes:
    return frame(["merge", *unframe(slot)[0][1:]])


@pytest.mark.parametrize(
    ("kind", "newer", "why"),
    [
        ("root", in_newer_format, "has format 2, this version reads 1"),
        ("wal", of_new_kind, "has a slot of kind 'merge', which this version doesn't know"),
    ],
)
def test_what_a_newer_version_has_written_has_one_line_and_stays(
    tmp_path: Path, shared: Path, kind: str, newer: Callable[[bytes], bytes], why: str
) -> None:
    with node_at(tmp_path / "a", f"remote=file://{shared}", PATIENT) as nsqd:
        nsqd.connect().publish("t", b"1")
        assert nsqd.stop() == 0
    newest = max((it for it in (shared / "orders").rglob("*") if it.is_file() and kind in it.parts), key=str)
    old = newest.read_bytes()
    newest.write_bytes(newer(old))
    before = files_in(tmp_path)
    name = newest.relative_to(shared / "orders")
    for at in ("a", "b"):
        status, line = refused_start(tmp_path / at, *options_of(f"remote=file://{shared}"))
        assert (status, line) == (
            1,
            f"orders in file://{shared} can't be owned: {name}: {why}: use a newer version of nsqd",
        )
    assert {it: data for it, data in files_in(tmp_path).items() if tmp_path / "b" not in it.parents} == before
    newest.write_bytes(old)
    with node_at(tmp_path / "b", f"remote=file://{shared}") as nsqd:
        assert nsqd.topic("t")["depth"] == 1


# A node that runs

# An attribute of the store, what is wrong there, and what nsqd says
FAULTS: Sequence[tuple[str, object, str]] = (
    ("keys", {}, "the store doesn't know this access key: correct AWS_ACCESS_KEY_ID (InvalidAccessKeyId)"),
    ("keys", {KEY: "?"}, "the secret key is wrong: correct AWS_SECRET_ACCESS_KEY (SignatureDoesNotMatch)"),
    ("bucket", "?", "there is no bucket of this name: create it, or correct the URL (NoSuchBucket)"),
    ("clock_is_off_by", HOUR, CLOCK),
    ("clock_is_off_by", -HOUR, CLOCK),
)


def test_a_store_that_refuses_what_it_has_accepted_loses_nothing(tmp_path: Path, store: StrictS3) -> None:
    with node_at(tmp_path / "a", *store.remote_options()) as nsqd:
        seen = nsqd.seen
        count = 0
        for attribute, wrong, line in FAULTS[:: sized(short=2, long=1)]:
            right = getattr(store, attribute)
            nsqd.connect().publish("t", b"1")
            setattr(store, attribute, wrong)
            assert _error_of_publish(nsqd).startswith(f"E_PUB_FAILED PUB failed remote: {STORE}: {line}")
            nsqd.connect().publish("fast", b"2")
            assert nsqd.http("GET", "/ping").body.decode().startswith(f"NOK - remote: {STORE}: {line}")
            said = f"ERROR: storage fault error=remote: {STORE}: {line}"
            eventually(lambda said=said, seen=seen: said in "\n".join(nsqd.log.splitlines()[seen:]))
            setattr(store, attribute, right)
            _wait_until_well(nsqd)
            count += 1
            assert (nsqd.topic("t")["depth"], nsqd.topic("fast")["depth"]) == (2 * count, count)
            seen = nsqd.seen
        assert nsqd.stop() == 0
    with node_at(tmp_path / "b", *store.remote_options()) as nsqd:
        assert (nsqd.topic("t")["depth"], nsqd.topic("fast")["depth"]) == (2 * count, count)


def test_a_bucket_that_somebody_empties_while_a_node_runs_is_noticed_at_the_next_root(
    tmp_path: Path, shared: Path
) -> None:
    options = (f"remote=file://{shared}", PATIENT)
    why = (
        "the store has no such node any more: has somebody emptied it? All is on this disk; stop this nsqd, and run nsqd "
        "remote seed before its next start"
    )
    with node_at(tmp_path / "a", *options) as nsqd:
        nsqd.connect().publish("t", b"1")
        shutil.rmtree(shared / "orders")
        nsqd.connect().publish("t", b"2")
        assert nsqd.stop() == 0
        assert f"WARNING: stopped without a last root, so the next owner reads more slots: {why}" in nsqd.log
    status, line = refused_start(tmp_path / "a", *options_of(*options))
    assert status == 1
    assert line.startswith(
        f"orders in file://{shared} can't be owned: node: is missing, and this data path was in the store"
    )
    assert (
        run_to_end("remote", "seed", f"file://{shared}", "--name=orders", f"--data-path={tmp_path / 'a'}").returncode
        == 0
    )
    with node_at(tmp_path / "a", *options) as nsqd:
        assert nsqd.topic("t")["depth"] == 2
        nsqd.kill()
    with node_at(tmp_path / "b", *options) as nsqd:
        assert nsqd.topic("t")["depth"] == 2


def test_a_shared_folder_that_is_full_has_one_line_until_there_is_room(tmp_path: Path) -> None:
    with mounted_for_test(tmp_path / "disk", 1 << 20) as disk:
        if disk.under:
            pytest.skip("only root sees the same file system as its daemons")
        (disk.seen / "shared").mkdir()
        url = f"file://{disk.folder}/shared"
        full = disk.fill()
        status, line = refused_start(tmp_path / "a", *options_of(f"remote={url}"))
        assert status == 1
        assert line.startswith(f"the store can't be checked before its first use: {url}: ")
        assert line.endswith("no space left on device; make room there")
        full.unlink()
        with node_at(tmp_path / "a", f"remote={url}") as nsqd:
            nsqd.connect().publish("t", b"1")
            full = disk.fill()
            assert _error_of_publish(nsqd).endswith("no space left on device; make room there; it may be stored")
            nsqd.connect().publish("fast", b"2")
            full.unlink()
            _wait_until_well(nsqd)
            full = disk.fill()
            nsqd.connect().publish("fast", b"3")
            assert nsqd.stop() == 0
            said = "stopped before everything was in the store, so the rest is on this disk only: it took too long"
            assert f"WARNING: {said} ({url}: " in nsqd.log
            full.unlink()
            nsqd.start()
            assert (nsqd.topic("t")["depth"], nsqd.topic("fast")["depth"]) == (2, 2)
            assert nsqd.stop() == 0
        with node_at(tmp_path / "b", f"remote={url}") as nsqd:
            assert (nsqd.topic("t")["depth"], nsqd.topic("fast")["depth"]) == (2, 2)


def _error_of_publish(nsqd: Nsqd) -> str:
    client = nsqd.connect()
    client.send(commands.pub("t", b"it may be stored" * 1000))
    return client.error().decode()


def _wait_until_well(nsqd: Nsqd) -> None:
    eventually(lambda: nsqd.http("GET", "/ping").body == b"OK")
