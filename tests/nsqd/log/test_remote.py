"""With --ack=remote, a publisher gets its OK when the remote copy has its message, and history shows nothing before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nsqd.ack_option import Ack
from nsqd.broker.batch import Receipt
from nsqd.broker.rules import LogRules
from nsqd.log.history import LogHistory
from tests.nsqd.log.fake_remote import FakeRemote
from tests.nsqd.log.harness import OpenStore, TroubledFiles, opened


@contextmanager
def opened_with_remote(
    path: Path, files: TroubledFiles | None = None, **settings: Any
) -> Iterator[tuple[OpenStore, FakeRemote]]:
    remote = FakeRemote()
    with opened(path, files, remote=remote, **{"ack": Ack.REMOTE, **settings}) as store:
        yield store, remote


def publish(store: OpenStore, remote: FakeRemote, *bodies: bytes) -> Receipt:
    """Publish one batch, whose write is the next change."""
    receipt = store.append(*bodies)
    remote.position += 1
    store.store.write_logs()
    return receipt


def next_in_history(store: OpenStore) -> int:
    found = LogHistory(store.store).find("t")
    assert found is not None
    return found.next


def test_a_publisher_is_answered_when_its_message_is_confirmed(tmp_path: Path) -> None:
    with opened_with_remote(tmp_path) as (store, remote):
        first, second = publish(store, remote, b"a"), publish(store, remote, b"b")
        store.sync()
        assert not first.settled
        assert (remote.awaited, store.log().waiting_publishes) == (remote.position, 2)
        remote.confirm(1)
        assert store.log().waiting_publishes == 1
        assert (first.settled, first.error, second.settled) == (True, None, False)


@pytest.mark.parametrize("ack", [Ack.WRITTEN, Ack.SYNCED])
def test_other_topics_do_not_wait_for_the_store(tmp_path: Path, ack: Ack) -> None:
    with opened_with_remote(tmp_path, ack=ack) as (store, remote):
        receipt = publish(store, remote, b"a")
        store.sync()
        assert receipt.settled
        assert remote.awaited == 0


@pytest.mark.parametrize("ack", list(Ack))
def test_history_shows_what_is_confirmed_and_not_what_is_synced(tmp_path: Path, ack: Ack) -> None:
    with opened_with_remote(tmp_path, ack=ack) as (store, remote):
        publish(store, remote, b"a", b"b")
        store.store.flush()
        store.sync()
        assert next_in_history(store) == 0
        assert remote.confirm(remote.position) == ["t"]
        assert next_in_history(store) == 2


def test_history_ends_in_the_middle_of_a_segment_that_is_confirmed_in_part(tmp_path: Path) -> None:
    with opened_with_remote(tmp_path, max_bytes_per_file=200) as (store, remote):
        for number in range(5):
            publish(store, remote, b"%060d" % number)
        assert len(store.segments()) > 1
        for position in range(1, 6):
            remote.confirm(position)
            history = LogHistory(store.store).find("t")
            assert history is not None
            reader = history.open(0, history.next, 1000)
            while reader.read() is not None:
                pass
            reader.close()
            assert (history.next, reader.next) == (position, position)


def test_a_segment_that_is_removed_before_the_next_is_confirmed_leaves_nothing_to_read(tmp_path: Path) -> None:
    with opened_with_remote(tmp_path, max_bytes_per_file=100) as (store, remote):
        publish(store, remote, bytes(90))
        remote.confirm(1)
        publish(store, remote, bytes(90))
        store.log().release(1)
        store.sync()
        history = LogHistory(store.store).find("t")
        assert history is not None
        assert (history.first, history.next, history.segments) == (1, 1, 0)
        remote.confirm(2)
        assert next_in_history(store) == 2


def test_followers_learn_of_confirmed_messages_only(tmp_path: Path) -> None:
    with opened_with_remote(tmp_path) as (store, remote):
        topics: list[str] = []
        LogHistory(store.store).follow(topics.append)
        publish(store, remote, b"a")
        store.sync()
        assert topics == []
        remote.confirm(remote.position)
        assert topics == ["t"]


def test_a_store_that_does_not_answer_refuses_publishes_that_would_wait_for_it(tmp_path: Path) -> None:
    with opened_with_remote(tmp_path, topic_ack={"w": Ack.WRITTEN}) as (store, remote):
        remote.why_refused = "remote: no answer"
        assert store.publish(b"a").error == "remote: no answer"
        assert store.publish(b"a", topic="w").error is None
        assert store.log().refusal() == "remote: no answer"
        store.store.write_logs()
        remote.why_refused = None
        assert store.publish(b"a").error is None


def test_a_repeat_that_asks_while_nothing_is_published_is_not_refused_for_longer_than_that(tmp_path: Path) -> None:
    with opened_with_remote(tmp_path) as (store, remote):
        remote.why_refused = "remote: no answer"
        assert store.log().refusal_now() == "remote: no answer"
        remote.why_refused = None
        assert store.log().refusal_now() is None


def test_messages_whose_publisher_has_waited_too_long_stay(tmp_path: Path) -> None:
    with opened_with_remote(tmp_path) as (store, remote):
        receipt = publish(store, remote, b"a")
        store.log().fail_unconfirmed("remote: no answer; it may be stored")
        assert (receipt.error, receipt.stays) == ("remote: no answer; it may be stored", True)
        assert store.read() == {0: b"a"}
        remote.confirm(remote.position)
        assert next_in_history(store) == 1


def test_publishers_of_a_deleted_topic_get_an_error(tmp_path: Path) -> None:
    with opened_with_remote(tmp_path) as (store, remote):
        receipt = publish(store, remote, b"a")
        store.store.drop_log("t")
        assert (receipt.error, receipt.stays) == ("exiting", False)
        assert remote.dropped == ["t"]


def test_what_recovery_has_found_is_confirmed_before_anything_is_served(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.publish(b"a", b"b")
    with opened_with_remote(tmp_path) as (store, _):
        assert next_in_history(store) == 2
        assert store.log().is_confirmed


def test_a_store_that_is_closed_waits_for_the_copy_while_it_holds_the_lock(tmp_path: Path) -> None:
    with opened_with_remote(tmp_path) as (store, remote):
        store.store.close()
        assert remote.is_closed


class Policy:
    """A policy file that says only which --ack topics have. The store's is read again by `change`."""

    def __init__(self, ack: Ack) -> None:
        self.ack = ack

    def log(self, topic: str, /) -> LogRules:
        return LogRules(ack=self.ack)

    def retention_times(self) -> Iterable[int]:
        return ()

    def change(self, ack: Ack, store: OpenStore) -> None:
        self.ack = ack
        store.store.settings_changed(["t"])


@pytest.mark.parametrize("before", [Ack.MEMORY, Ack.WRITTEN, Ack.SYNCED])
def test_a_repeat_waits_although_the_earlier_publisher_did_not_have_to(tmp_path: Path, before: Ack) -> None:
    policy = Policy(before)
    with opened_with_remote(tmp_path, policy=policy) as (store, remote):
        earlier = publish(store, remote, b"a")
        policy.change(Ack.REMOTE, store)
        early_repeat = store.log().answer_repeat(earlier)
        store.sync()
        assert (earlier.settled, earlier.error) == (True, None)
        repeat = store.log().answer_repeat(earlier)
        assert (early_repeat.settled, repeat.settled, remote.awaited) == (False, False, 1)
        remote.confirm(1)
        assert [(it.settled, it.error) for it in (early_repeat, repeat)] == [(True, None)] * 2
        assert store.log().answer_repeat(earlier).settled


def test_a_repeat_of_a_publish_that_waits_for_the_copy_waits_with_it(tmp_path: Path) -> None:
    with opened_with_remote(tmp_path) as (store, remote):
        waiting = store.append(b"a")
        assert store.log().answer_repeat(waiting) is waiting
        remote.position += 1
        store.store.write_logs()
        assert store.log().answer_repeat(waiting) is waiting


def test_a_repeat_is_refused_while_the_store_does_not_answer_unless_the_copy_has_its_message(tmp_path: Path) -> None:
    policy = Policy(Ack.WRITTEN)
    with opened_with_remote(tmp_path, policy=policy) as (store, remote):
        earlier = publish(store, remote, b"a")
        policy.change(Ack.REMOTE, store)
        remote.why_refused = "remote: no answer"
        assert store.log().answer_repeat(earlier).error == "remote: no answer"
        remote.confirm(1)
        answer = store.log().answer_repeat(earlier)
        assert (answer.settled, answer.error) == (True, None)


def test_a_repeat_gets_the_error_of_a_disk_that_has_not_written_its_message(tmp_path: Path) -> None:
    policy, files = Policy(Ack.MEMORY), TroubledFiles()
    with opened_with_remote(tmp_path, files, policy=policy) as (store, remote):
        publish(store, remote, b"a")
        store.store.flush()
        remote.confirm(1)
        earlier = store.append(b"b")
        files.fail("write")
        policy.change(Ack.REMOTE, store)
        repeat = store.log().answer_repeat(earlier)
        assert repeat.settled
        assert repeat.error is not None
        files.recover()


def test_a_repeat_does_not_wait_for_the_store_without_ack_remote(tmp_path: Path) -> None:
    policy = Policy(Ack.REMOTE)
    with opened_with_remote(tmp_path, policy=policy) as (store, remote):
        policy.change(Ack.WRITTEN, store)
        earlier = publish(store, remote, b"a")
        assert store.log().answer_repeat(earlier) is earlier


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_strict_node_refuses_what_waits_for_nothing_while_the_store_is_away(tmp_path: Path, is_strict: bool) -> None:
    with opened_with_remote(tmp_path, ack=Ack.WRITTEN) as (store, remote):
        remote.is_strict = is_strict
        assert publish(store, remote, b"a").error is None
        remote.why_refused = "remote: no answer"
        assert publish(store, remote, b"b").error == ("remote: no answer" if is_strict else None)
        remote.why_refused = None
        store.store.write_logs()
        assert publish(store, remote, b"c").error is None
