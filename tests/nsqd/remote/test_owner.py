"""What an owner makes of recorded changes: slots, in time, and what they confirm."""

from __future__ import annotations

from math import inf

from nsqcommon.remote.names import Run, slot_name
from nsqcommon.remote.operations import Commit, OpenFile, Remove, Replace, Write
from nsqcommon.remote.root import FileEntry, FilePart, Root
from nsqd.remote.chain import ChainRequest, RequestVerb
from nsqd.remote.object_store import Created
from nsqd.remote.owner import LINGER, MOST_LOOKS, EndedRun, Owner, WaitingChanges
from nsqd.remote.pacing import FULL_SLOT, Pacing
from nsqd.remote.recorder import Recorded
from nsqd.remote.slot_builder import OBJECTS
from tests.nsqd.remote.shelf import Shelf

INTERVAL, DELAY = 0.05, 1.0
QUIET = 100.0  # a time at which the first heartbeat has been answered


class Node:
    """An owner, the store that it asks, and a clock."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        claimed = self.shelf.claimed("a")
        self.run = claimed.run
        self.owner = Owner(claimed, Pacing(interval=INTERVAL, delay=DELAY), chance=lambda: 0.0, wall=lambda: 1)
        self.wakes = 0
        self.owner.wake = self._count_wake
        self.now = QUIET
        self.answer_all()

    def _count_wake(self) -> None:
        self.wakes += 1

    def write(self, data: bytes = b"x", *, is_awaited: bool = False) -> int:
        """Record a change that is complete in itself. Return its number."""
        self.owner.record(Recorded(Replace("log.json", len(data)), data))
        if is_awaited:
            self.owner.expect_confirmation()
        return self.owner.position

    def next_request(self) -> ChainRequest | None:
        found = self.owner.next_request(self.now)
        return found if isinstance(found, ChainRequest) else None

    def next_look(self) -> float:
        found = self.owner.next_request(self.now)
        assert not isinstance(found, ChainRequest)
        return found

    def answer(self, request: ChainRequest) -> None:
        if request.verb is RequestVerb.CREATE:
            self.owner.created(request, self.shelf.create(request.name, b"".join(request.data)), self.now)
        else:
            self.owner.got(request, self.shelf.objects.get(request.name), self.now)

    def answer_all(self) -> None:
        while (request := self.next_request()) is not None:
            self.answer(request)

    def wait(self, seconds: float) -> None:
        self.answer_all()
        self.now += seconds
        self.answer_all()

    def end_run(self) -> EndedRun:
        ended = self.owner.end_run()
        assert ended is not None
        return ended

    def slots(self, run: Run | None = None) -> list[list[object]]:
        run = run or self.run
        names = sorted(it for it in self.shelf.objects if it.startswith(f"wal/{run}/"))
        return [list(self.shelf.slot(run, number).operations) for number in range(len(names))]


def test_a_change_without_a_waiting_publisher_lets_the_rest_of_the_turn_into_its_slot() -> None:
    node = Node()
    node.write()
    assert node.next_look() == node.now + LINGER
    node.write()
    node.wait(LINGER)
    assert len(node.slots()) == 1
    assert node.owner.confirmed == node.owner.position == 2


def test_changes_that_follow_wait_for_the_delay_or_for_the_interval_if_a_publisher_waits() -> None:
    node = Node()
    node.write(is_awaited=True)
    node.answer_all()
    sent = node.now
    node.write()
    assert node.next_look() == sent + DELAY
    node.write(is_awaited=True)
    assert node.next_look() == sent + INTERVAL


def test_eight_mebibytes_leave_at_once() -> None:
    node = Node()
    node.write(is_awaited=True)
    node.answer_all()
    node.owner.record(Recorded(OpenFile(1, "a.log")))
    node.owner.record(Recorded(Write(1, 0, FULL_SLOT), bytes(FULL_SLOT)))
    assert node.next_request() is not None


def test_a_thread_is_woken_for_the_first_change_and_for_the_first_publisher_that_waits() -> None:
    node = Node()
    node.write()
    node.write()
    assert node.wakes == 1
    node.next_look()
    node.write(is_awaited=True)
    node.owner.hurry()
    node.write(is_awaited=True)
    node.owner.hurry()
    assert node.wakes == 2
    node.answer_all()
    node.write(is_awaited=True)
    node.owner.hurry()
    assert node.wakes >= 3


def test_a_turn_in_which_no_publisher_waits_wakes_no_thread_at_its_end() -> None:
    node = Node()
    node.write()
    wakes = node.wakes
    node.owner.hurry()
    assert node.wakes == wakes


def test_a_slot_is_confirmed_with_those_ahead_of_it() -> None:
    node = Node()
    first = node.write(is_awaited=True)
    earlier = node.next_request()
    node.now += INTERVAL
    node.write(is_awaited=True)
    later = node.next_request()
    assert earlier is not None
    assert later is not None
    node.answer(later)
    assert node.owner.confirmed < first
    node.answer(earlier)
    assert node.owner.confirmed == node.owner.position


def test_what_is_left_out_of_slots_is_confirmed_as_well() -> None:
    node = Node()
    node.owner.record(Recorded(OpenFile(1, "a.log")))
    node.owner.record(Recorded(Remove("a.log")))
    node.wait(LINGER)
    node.owner.record(Recorded(Write(1, 0, 1), b"x"))
    node.wait(DELAY)
    assert len(node.slots()) == 1
    assert node.owner.confirmed == node.owner.position == 3


def test_a_repeated_create_has_the_bytes_of_the_first_even_if_the_slot_was_stored_meanwhile() -> None:
    node = Node()
    node.write(b"body", is_awaited=True)
    first = node.next_request()
    node.now += 2.0
    second = node.next_request()
    assert first is not None
    assert second is not None
    node.answer(first)
    assert b"".join(second.data) == node.shelf.objects[first.name]


def test_a_slot_of_another_process_ends_everything() -> None:
    node = Node()
    node.shelf.claimed("b")
    node.write(is_awaited=True)
    node.answer_all()
    assert node.owner.fenced == "the name was taken over by process 1 on machine-b"
    node.write()
    assert node.next_look() == inf
    assert node.owner.confirmed < node.owner.position


def test_an_idle_owner_asks_for_its_next_slot_every_ten_seconds() -> None:
    node = Node()
    assert node.next_look() == QUIET + 10.0
    node.now += 10.0
    request = node.next_request()
    assert request is not None
    assert (request.verb, request.name) == (RequestVerb.PROBE, slot_name(node.run, 0))
    assert node.next_look() == node.now + 10.0  # also if there is no answer
    node.owner.failed(request, node.now + 1.0)
    assert node.next_look() == node.now + 10.0


def test_an_owner_that_sends_slots_needs_no_heartbeat() -> None:
    node = Node()
    node.now += 9.0
    node.write(is_awaited=True)
    node.answer_all()
    assert node.next_look() == node.now + 10.0


def test_a_store_that_asks_for_fewer_requests_gets_half_as_many() -> None:
    node = Node()
    node.write(is_awaited=True)
    node.answer_all()
    node.owner.slow_down(node.now)
    node.write(is_awaited=True)
    assert node.next_look() == node.now + 2 * INTERVAL


def test_the_next_run_goes_on_without_a_pause_and_opens_its_files_again() -> None:
    node = Node()
    node.owner.record(Recorded(OpenFile(1, "a.log")))
    node.owner.record(Recorded(Write(1, 0, 1), b"x"))
    node.wait(LINGER)
    ended = node.end_run()
    node.owner.record(Recorded(Write(1, 1, 1), b"y"))
    node.wait(DELAY)
    assert (ended.run.run, ended.run.end, ended.following) == (node.run, 1, node.owner.run)
    assert {path: sum(it.length for it in pieces) for path, (_, pieces) in ended.snapshot.items()} == {"a.log": 1}
    assert node.slots(ended.following) == [[OpenFile(1, "a.log"), Write(1, 1, 1)]]
    assert node.owner.confirmed == node.owner.position


def test_a_commit_is_reported_when_it_is_confirmed_and_the_root_takes_the_place_of_slots() -> None:
    node = Node()
    ended = node.end_run()
    node.owner.commit(Commit(ended.following))
    request = node.next_request()
    assert request is not None
    assert node.owner.take_commits() == []
    node.answer(request)
    node.wait(DELAY)
    assert node.owner.take_commits() == [Commit(ended.following)]
    assert node.owner.take_commits() == []
    node.owner.rebase(ended.snapshot, Root(node.owner.node, ended.following, {}))
    assert node.end_run().objects == frozenset()


def test_the_run_before_is_stored_before_the_next_counts() -> None:
    node = Node()
    node.owner.end_run()
    end = node.next_request()
    node.write(is_awaited=True)
    slot = node.next_request()
    assert end is not None
    assert slot is not None
    node.owner.created(end, Created.UNKNOWN, node.now)
    node.answer(slot)
    assert node.owner.confirmed == 0
    node.wait(1.0)
    assert node.owner.confirmed == 1


def test_an_owner_says_since_when_the_store_is_silent_and_how_far_it_is_behind() -> None:
    node = Node()
    assert node.owner.stalled_since == node.owner.behind_since == inf
    node.write()
    noticed = node.now
    node.next_look()
    assert (node.owner.stalled_since, node.owner.behind_since) == (inf, noticed)
    node.now += LINGER
    request = node.next_request()
    assert request is not None
    assert (node.owner.stalled_since, node.owner.behind_since) == (node.now, noticed)
    node.answer(request)
    assert node.owner.stalled_since == node.owner.behind_since == inf


def test_an_owner_says_for_how_long_the_store_has_owed_an_answer() -> None:
    node = Node()
    node.write()
    node.next_look()
    node.now += LINGER
    assert node.owner.snapshot(node.now).silent_seconds == 0, "it was never asked"
    request = node.next_request()
    assert request is not None
    node.owner.created(request, Created.UNKNOWN, node.now)
    node.now += 5
    assert node.owner.snapshot(node.now).silent_seconds == 5
    node.answer_all()
    node.now += 100
    assert node.owner.snapshot(node.now).silent_seconds == 0, "nothing was asked since"


def test_a_store_that_takes_one_slot_after_another_is_not_silent() -> None:
    """However long each has waited for those ahead of it."""
    node = Node()
    requests = []
    for _ in range(3):
        node.write(bytes(FULL_SLOT), is_awaited=True)
        requests.append(node.next_request())
    for request in requests:
        node.now += 8.0
        assert request is not None
        node.answer(request)
        assert node.owner.stalled_since in (node.now, inf)


def test_changes_that_a_slot_has_left_over_are_as_old_as_they_are() -> None:
    node = Node()
    node.write(bytes(FULL_SLOT))
    first = node.next_request()
    since = node.now
    node.write(bytes(FULL_SLOT))
    node.write()
    second = node.next_request()  # takes the first of the two
    node.now += 0.5
    node.write()
    node.next_look()
    assert first is not None
    assert second is not None
    node.answer(first)
    node.answer(second)
    assert node.owner.behind_since == since
    node.wait(DELAY)
    assert node.owner.behind_since == inf


def test_looks_without_end_take_no_memory_and_make_nothing_younger() -> None:
    waiting = WaitingChanges()
    for number in range(1, 1000):
        waiting.notice(number, float(number))
    waiting.cut(10)
    assert waiting.since == 11.0
    waiting.cut(998)
    assert waiting.since == float(MOST_LOOKS)
    waiting.cut(999)
    assert waiting.since == inf


# When too much waits


def test_what_was_dropped_is_confirmed_when_the_chain_goes_on_from_a_root_that_has_it() -> None:
    node = Node()
    node.write(b"in a slot")
    node.wait(LINGER)
    node.write(b"dropped", is_awaited=True)
    node.owner.drop()
    node.wait(DELAY)
    assert (node.owner.confirmed, node.owner.is_settled) == (1, False)
    jump = node.owner.begin_jump()
    assert [it.size for it, _ in jump.snapshot.values()] == [len("dropped")]
    later = node.write(b"waits for the root")
    node.wait(DELAY)
    assert node.owner.confirmed == 1
    part = FilePart("fold/1", 0, len("dropped"), 0)
    ended = node.owner.jump(Root("node", jump.run, {"log.json": FileEntry(part.length, (part,))}))
    assert (ended.run.run, ended.following) == (node.run, jump.run)
    node.wait(DELAY)
    assert node.shelf.slot(node.run, 1).reads_root
    assert len(node.slots(jump.run)) == 1
    assert (node.owner.confirmed, node.owner.is_settled) == (later, True)


def test_a_root_that_dropped_changes_need_waits_until_everything_before_is_confirmed() -> None:
    node = Node()
    node.write(is_awaited=True)
    request = node.next_request()
    assert request is not None
    node.write()
    node.owner.drop()
    assert not node.owner.may_jump
    node.answer(request)
    assert node.owner.may_jump


def test_a_root_that_could_not_be_made_is_followed_by_one_of_a_later_run() -> None:
    node = Node()
    node.write()
    node.owner.drop()
    first = node.owner.begin_jump()
    assert not node.owner.may_jump
    node.owner.give_up_jump()
    assert node.owner.may_jump
    later = node.owner.begin_jump()
    assert later.run.number == first.run.number + 1
    assert later.snapshot.keys() == {"log.json"}


def test_no_run_ends_while_changes_are_dropped_that_a_root_has_to_have_first() -> None:
    node = Node()
    node.write()
    node.owner.drop()
    assert node.owner.end_run() is None
    jump = node.owner.begin_jump()
    assert node.owner.end_run() is None
    node.owner.jump(Root("node", jump.run, {"log.json": FileEntry(1, (FilePart("fold/1", 0, 1, 0),))}))
    assert node.end_run().run.run == jump.run


def test_a_node_that_sends_nothing_because_of_a_gap_is_silent_and_behind() -> None:
    node = Node()
    node.write()
    node.next_look()
    since = node.now
    node.owner.drop()
    node.now += 60.0
    node.answer_all()
    assert (node.owner.stalled_since, node.owner.behind_since) == (since, since)


def test_a_node_that_stores_what_it_has_dropped_is_behind_but_not_silent() -> None:
    node = Node()
    node.write(bytes(1000))
    node.owner.drop()
    jump = node.owner.begin_jump()
    node.write(bytes(10))
    node.now += 8.0
    node.owner.took(node.now)
    assert node.owner.stalled_since == node.now
    assert node.owner.snapshot(node.now).behind_bytes == 1010
    node.owner.jump(Root("node", jump.run, {"log.json": FileEntry(1, (FilePart("fold/1", 0, 1, 0),))}))
    node.wait(DELAY)
    assert node.owner.stalled_since == inf
    assert node.owner.snapshot(node.now).behind_bytes == 0


def test_a_commit_that_was_dropped_is_forgotten() -> None:
    node = Node()
    node.owner.commit(Commit(node.run))
    node.owner.drop()
    jump = node.owner.begin_jump()
    node.owner.jump(Root("node", jump.run, {}))
    node.wait(DELAY)
    assert node.owner.take_commits() == []


def test_more_than_the_buffer_is_dropped() -> None:
    shelf = Shelf()
    owner = Owner(shelf.claimed("a"), Pacing(interval=INTERVAL, delay=DELAY, depth=0), wall=lambda: 1, buffer=1000)
    for size in (1000 - OBJECTS, 1):
        assert not owner.is_stopped
        owner.record(Recorded(Replace("log.json", size), bytes(size)))
        owner.next_request(QUIET)
    assert owner.is_stopped


def test_publishes_are_held_back_while_more_than_half_of_the_buffer_waits() -> None:
    shelf = Shelf()
    owner = Owner(shelf.claimed("a"), Pacing(interval=INTERVAL, delay=DELAY, depth=1), wall=lambda: 1, buffer=10_000)
    owner.record(Recorded(Replace("log.json", 5001), bytes(5001)))
    assert owner.holds_back(0), "no thread has taken it"
    assert owner.holds_back(5000)
    assert not owner.holds_back(5001), "the rest of the buffer has no room for it"
    owner.expect_confirmation()
    request = owner.next_request(QUIET)
    assert isinstance(request, ChainRequest)
    assert not owner.holds_back(0), "a slot has it"
    owner.record(Recorded(Replace("log.json", 5001), bytes(5001)))
    owner.next_request(QUIET)
    assert owner.holds_back(0), "no slot has it"


def test_publishes_are_held_back_until_a_root_has_what_was_dropped() -> None:
    shelf = Shelf()
    owner = Owner(shelf.claimed("a"), Pacing(interval=INTERVAL, delay=DELAY), wall=lambda: 1, buffer=10_000)
    owner.record(Recorded(Replace("log.json", 9000), bytes(9000)))
    owner.drop()
    assert owner.holds_back(0)
    jump = owner.begin_jump()
    assert owner.holds_back(0)
    owner.jump(Root("node", jump.run, {"log.json": FileEntry(9000, (FilePart("fold/1", 0, 9000, 0),))}))
    assert not owner.holds_back(0)


def test_what_the_recovery_has_recorded_is_no_reason_to_drop_anything() -> None:
    shelf = Shelf()
    owner = Owner(shelf.claimed("a"), Pacing(interval=INTERVAL, delay=DELAY), wall=lambda: 1, buffer=1000)
    owner.record(Recorded(Replace("log.json", 1000), bytes(1000)))
    owner.begin([Recorded(Replace("log.json", 3), b"new")])
    request = owner.next_request(QUIET)
    assert isinstance(request, ChainRequest)
    assert not owner.is_stopped
