"""Data paths of Go's nsqd, whole and damaged, and the result of importing them."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from nsqcommon.startup import StartupError
from nsqd.go_import.marker import MARKER, ImportStep, read_marker, write_marker
from nsqd.log.files import Files
from nsqd.log.journal.own_changes import LogCheckpoint, checkpoint_change
from nsqd.log.record import Header
from nsqd.log.store import DiskStore
from tests.nsqd.go_import.harness import Queues, import_, some, write
from tests.nsqd.log.harness import headers_of
from tests.support.go_data import GoData, Message, deliverable, expected, message_id
from tests.support.log_settings import log_settings


def test_backlogs_of_channels_come_first_each_seen_by_its_channel_alone(tmp_path: Path) -> None:
    queues: Queues = {
        "t": {
            "a": some(attempts=(0, 0, 0, 1, 2, 65_535)),
            "b": some(50, attempts=(3,)),
            "c": [],
            "": some(70, first=500),
        },
        "u": {"": some(300, first=10)},
        "v": {"x": some(20)},
        "empty": {},
    }
    write(tmp_path, queues)
    import_(tmp_path)
    outcome = deliverable(tmp_path)
    assert outcome.given == expected(queues)
    assert all(state.learned for state in outcome.state.values())
    assert outcome.state["t"].frozen_at is None
    assert outcome.state["u"].frozen_at == 0


def test_pauses_stay_and_a_paused_topic_keeps_its_queue_from_its_channels(tmp_path: Path) -> None:
    own = some(70, first=500)
    write(tmp_path, {"t": {"a": some(), "b": [], "": own}}, paused=("t", "t:b"))
    import_(tmp_path)
    state = deliverable(tmp_path).state["t"]
    assert state.paused
    assert state.frozen_at == 100
    assert [state.channels[name].paused for name in "ab"] == [False, True]
    found = deliverable(tmp_path).given["t"]
    assert found["a"] == expected({"t": {"a": some()}})["t"]["a"]
    assert found["b"].startswith("0 ")
    assert found[""] == expected({"t": {"": own}})["t"][""]


def test_what_was_read_is_not_taken(tmp_path: Path) -> None:
    go = GoData(tmp_path, max_bytes_per_file=5_000)
    go.queue("t:c", some(200), consumed=77, first_file=999_999)
    go.metadata({"t": {"c": False}})
    assert len(list(tmp_path.glob("t:c.diskqueue.1*"))) > 2  # numbers with seven digits
    import_(tmp_path)
    assert deliverable(tmp_path).given == expected({"t": {"c": some(200)[77:]}})


def test_files_are_left_under_new_names_and_nothing_happens_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, {"t": {"c": some(), "": some(first=500)}})
    before = {it.name: it.read_bytes() for it in tmp_path.iterdir()}
    caplog.set_level(logging.INFO)
    import_(tmp_path)
    assert "imported topic=t messages=200 channels=1" in caplog.text
    assert "topics=1 channels=1 messages=200 new_ids=0 damaged_files=0" in caplog.text
    after = {it.name: it.read_bytes() for it in tmp_path.iterdir() if it.name.endswith(".imported")}
    assert after == {f"{name}.imported": data for name, data in before.items()}
    assert not [it for it in tmp_path.iterdir() if it.name in before]
    caplog.clear()
    import_(tmp_path)
    assert caplog.text == ""
    assert deliverable(tmp_path).given == expected({"t": {"c": some(), "": some(first=500)}})


def test_channels_are_named_in_the_second_place_too(tmp_path: Path) -> None:
    write(tmp_path, {"t": {"c": some()}}, paused=("t:c",))
    import_(tmp_path)
    topology = json.loads((tmp_path / "topology.json").read_bytes())["topology"]
    assert topology == {"t": {"paused": False, "channels": {"c": {"paused": True}}}}


def test_what_is_no_number_or_comes_twice_gets_a_new_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    good = some(5)
    odd = [good[0]._replace(id=it) for it in (b"0123456789ABCDEF", b"not a number at ", b" 123456789abcde\n")]
    write(tmp_path, {"t": {"c": [*good, *odd, good[3]], "d": [good[3]], "": [good[1], *some(3, first=90)]}})
    import_(tmp_path)
    assert "new_ids=5" in caplog.text  # good[3] in c, good[1] in the topic, and the odd ids
    ids = [it.base_id for it in headers(tmp_path, "t")]
    assert ids[:5] == [int(it.id, 16) for it in good]
    assert ids[9] == ids[3]  # another channel's copy keeps its id
    assert len(set(ids)) == len(ids) - 1
    assert all(it >> 54 == 7 for it in [*ids[5:9], ids[10]])


def headers(folder: Path, topic: str) -> list[Header]:
    store = DiskStore.open(folder, log_settings())
    try:
        store.recover()
        return headers_of(store, topic)
    finally:
        store.abandon()


def test_new_ids_are_not_given_out_again(tmp_path: Path) -> None:
    write(tmp_path, {"t": {"c": [some(1)[0]._replace(id=b"?" * 16)]}})
    import_(tmp_path)
    store = DiskStore.open(tmp_path, log_settings())
    reserved = store.recover().ids_reserved
    store.abandon()
    assert reserved > headers(tmp_path, "t")[0].base_id & (1 << 54) - 1


def test_segments_are_rolled_and_indexed(tmp_path: Path) -> None:
    write(tmp_path, {"t": {"c": some(3000)}})
    import_(tmp_path, max_bytes_per_file=200_000)
    folder = tmp_path / "topics" / "t.t"
    assert len(list(folder.glob("*.log"))) > 2
    assert all(it.stat().st_size <= 200_000 for it in folder.glob("*.log"))
    first = folder / "00000000000000000000.index"
    assert first.stat().st_size == 16 * 3
    assert deliverable(tmp_path).given == expected({"t": {"c": some(3000)}})


# Refused


@pytest.mark.parametrize("text", [b"", b"{", b'{"topics":[{"name":3}]}', b'{"topics":{}}'])
def test_metadata_that_nsq_would_not_take_is_one_clear_line(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "nsqd.dat").write_bytes(text)
    with pytest.raises(StartupError, match=r"^failed to load metadata - failed to parse metadata in .*nsqd.dat - "):
        import_(tmp_path)
    assert (tmp_path / "nsqd.dat").read_bytes() == text
    import_(tmp_path, begin=False)


def test_topics_of_both_are_not_mixed(tmp_path: Path) -> None:
    write(tmp_path, {"t": {"c": some()}, "u": {}})
    import_(tmp_path)
    before = deliverable(tmp_path)
    write(tmp_path, {"t": {"c": some(3)}, "w": {}})
    with pytest.raises(StartupError, match=r"already has topics of the same name \(t\).*--import-go=false"):
        import_(tmp_path)
    assert deliverable(tmp_path).given == before.given
    assert (tmp_path / "nsqd.dat").exists()


def test_a_second_data_path_may_follow_with_other_topics(tmp_path: Path) -> None:
    write(tmp_path, {"t": {"c": some()}})
    import_(tmp_path)
    write(tmp_path, {"w": {"c": some(5)}})
    import_(tmp_path)
    assert deliverable(tmp_path).given == expected({"t": {"c": some()}, "w": {"c": some(5)}})
    assert (tmp_path / "nsqd.dat.imported.2").exists()


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    write(tmp_path, {"t": {"c": some()}})
    import_(tmp_path, begin=False)
    assert (tmp_path / "nsqd.dat").exists()
    assert not (tmp_path / MARKER).exists()
    assert deliverable(tmp_path).given == {}


def test_a_damaged_marker_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_bytes(b"{}")
    with pytest.raises(StartupError, match="is damaged"):
        import_(tmp_path)


def test_while_it_is_not_known_which_ids_are_free_nothing_is_imported(tmp_path: Path) -> None:
    import_(tmp_path)
    (tmp_path / "node.json").write_bytes(b"{}")
    write(tmp_path, {"t": {"c": some()}})
    with pytest.raises(StartupError, match=r"node.json is damaged; start once with --import-go=false"):
        import_(tmp_path)


def test_a_deleted_topic_of_the_same_name_does_no_harm(tmp_path: Path) -> None:
    """The journal names another log, whose folder is gone."""
    store = DiskStore.open(tmp_path, log_settings())
    store.recover()
    store.journal.record(("topic", "t"), urgent=True)
    store.journal.record(checkpoint_change("t", LogCheckpoint("another", 0, 5000, 77)), urgent=True)
    store.close()
    write(tmp_path, {"t": {"c": some()}})
    import_(tmp_path)
    assert deliverable(tmp_path).given == expected({"t": {"c": some()}})


def test_topics_that_an_import_did_not_make_are_not_removed(tmp_path: Path) -> None:
    write(tmp_path, {"t": {"c": some()}})
    import_(tmp_path)
    marker = read_marker(Files(), tmp_path)
    assert marker is not None
    write_marker(Files(), tmp_path, replace(marker, step=ImportStep.RUNNING, topics={"t": "another"}))
    with pytest.raises(StartupError, match="is not from the interrupted import"):
        import_(tmp_path)
    assert list((tmp_path / "topics" / "t.t").glob("*.log"))


# Damaged


def test_a_length_that_cannot_be_ends_its_file_and_the_next_one_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written = some(200)
    go = write(tmp_path, {"t": {"c": written}})
    bad = go.file("t:c", 1)
    data = bytearray(bad.read_bytes())
    per_file = [count_in(go.file("t:c", number)) for number in (0, 1)]
    third = sum(len(it.record) for it in written[per_file[0] : per_file[0] + 2])
    data[third : third + 4] = b"\x7f\xff\xff\xff"
    bad.write_bytes(data)
    import_(tmp_path)
    kept = [*written[: per_file[0] + 2], *written[sum(per_file) :]]
    assert deliverable(tmp_path).given == expected({"t": {"c": kept}})
    assert f"no record at {third}, skipping {len(data) - third} bytes queue=t:c" in caplog.text
    assert bad.with_name(bad.name + ".bad").read_bytes() == data
    assert not bad.exists()
    assert go.file("t:c", 0).with_suffix(".dat.imported").exists()


def count_in(file: Path) -> int:
    data, position, found = file.read_bytes(), 0, 0
    while position < len(data):
        position += 4 + int.from_bytes(data[position : position + 4], "big")
        found += 1
    return found


@pytest.mark.parametrize("cut", [1, 3, 4, 15, 29])
def test_a_torn_tail_is_reported_and_the_rest_taken(tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture) -> None:
    written = [*some(10), some(1)[0]._replace(id=b"f" * 16, body=b"last")]
    go = write(tmp_path, {"t": {"c": written}})
    file = go.file("t:c", 0)
    file.write_bytes(file.read_bytes()[:-cut])
    import_(tmp_path)
    assert deliverable(tmp_path).given == expected({"t": {"c": written[:-1]}})
    assert f"skipping {34 - cut} bytes" in caplog.text
    assert file.with_name(file.name + ".bad").exists()


def test_a_whole_record_behind_the_write_position_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written = some(10)
    go = write(tmp_path, {"t": {"c": written}})
    position = sum(len(it.record) for it in written[:8])
    go.set_meta("t:c", 8, (0, 0), (0, position))
    import_(tmp_path)
    assert deliverable(tmp_path).given == expected({"t": {"c": written}})
    assert "bytes after the write position queue=t:c" in caplog.text
    assert "found 10 messages, but the metadata says 8" in caplog.text


@pytest.mark.parametrize("meta", [None, b"", b"5\n0,0\n", b"x\n0,0\n0,0\n", b"-9\n0,0\n0,0\n"])
def test_without_sound_metadata_everything_is_taken(tmp_path: Path, meta: bytes | None) -> None:
    go = write(tmp_path, {"t": {"c": some(200)}})
    if meta is None:
        go.meta("t:c").unlink()
    else:
        go.meta("t:c").write_bytes(meta)
    import_(tmp_path)
    assert deliverable(tmp_path).given == expected({"t": {"c": some(200)}})


def test_a_missing_file_costs_what_was_in_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written = some(200)
    go = write(tmp_path, {"t": {"c": written}})
    counts = [count_in(go.file("t:c", number)) for number in (0, 1)]
    go.file("t:c", 1).unlink()
    import_(tmp_path)
    assert deliverable(tmp_path).given == expected({"t": {"c": [*written[: counts[0]], *written[sum(counts) :]]}})
    assert "1 files are missing from 0 to" in caplog.text


def test_a_record_larger_than_allowed_is_taken_if_it_is_whole(tmp_path: Path) -> None:
    big = [it._replace(body=b"x" * 3000) for it in some(2)]
    written = [big[0], *some(3, first=10), big[1]]
    write(tmp_path, {"t": {"c": written}})
    import_(tmp_path, max_msg_size=1000)
    assert deliverable(tmp_path).given == expected({"t": {"c": written}})


def test_other_files_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    others = [
        "gone.diskqueue.000000.dat",
        "t:gone.diskqueue.meta.dat",
        "t:c.diskqueue.000000.dat.bad",
        "nsqd.dat.42.tmp",
        "notes.txt",
    ]
    write(tmp_path, {"t": {"c": some()}})
    for name in others:
        (tmp_path / name).write_bytes(b"x")
    import_(tmp_path)
    assert all((tmp_path / name).read_bytes() == b"x" for name in others)
    assert "ignoring the files of a queue that is not in nsqd.dat queue=gone" in caplog.text
    assert "ignoring the files of a queue that is not in nsqd.dat queue=t:gone" in caplog.text


def test_attempts_of_what_no_channel_had_got_are_dropped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, {"t": {"c": [], "": some(10, attempts=(4,))}})
    import_(tmp_path)
    assert deliverable(tmp_path).given == expected({"t": {"c": [], "": some(10)}})
    assert "reset the attempts of messages that no channel had messages=10" in caplog.text


def test_the_record_of_the_specification_is_understood(tmp_path: Path) -> None:
    (tmp_path / "t:c.diskqueue.000000.dat").write_bytes(
        bytes.fromhex("0000001f18e9e33bdd808c850002") + b"18a269aee2269000hello"
    )
    (tmp_path / "t:c.diskqueue.meta.dat").write_bytes(b"1\n0,0\n0,35\n")
    (tmp_path / "nsqd.dat").write_bytes(
        b'{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":true}]}],"version":"1.3.0"}'
    )
    import_(tmp_path)
    message = Message(b"18a269aee2269000", 0x18E9E33BDD808C85, 2, b"hello")
    assert deliverable(tmp_path).given == expected({"t": {"c": [message]}})


def test_ids_are_made_as_the_specification_says() -> None:
    timestamp = (423216200584 + 1288834974288) << 20
    assert message_id(timestamp) == b"18a269aee2269000"
