"""What an owner sends for its slots, and what it takes the answers for."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from random import Random

import pytest

from nsqcommon.remote.names import Run, slot_name
from nsqcommon.remote.operations import Replace
from nsqcommon.remote.slot import Claimant, Slot, SlotKind, decode_slot, encode_slot
from nsqd.remote.chain import MOST_UNCONFIRMED, Chain, ChainRequest, PendingSlot, RequestVerb
from nsqd.remote.object_store import Created

RUN = Run(7, "00000000000000aa")


def new_chain(depth: int = 4) -> Chain:
    return Chain("node", RUN, chance=lambda: 0.0, depth=depth)


def append(chain: Chain, position: int, content: bytes = b"x") -> PendingSlot:
    return chain.append([Replace("file", len(content))], [content], position, 1)


def send(chain: Chain, now: float = 0.0) -> ChainRequest:
    request = chain.next_request(now)
    assert request is not None
    return request


def send_all(chain: Chain, now: float = 0.0) -> list[ChainRequest]:
    return list(iter(lambda: chain.next_request(now), None))


def fence(run: Run, number: int) -> bytes:
    claimant = Claimant("machine-b", 4711)
    slot = Slot(SlotKind.FENCE, "node", run, number, "b" * 16, 1, (), run.following("b" * 16), False, claimant)
    return b"".join(encode_slot(slot))


def test_slots_are_numbered_and_have_what_was_appended() -> None:
    chain = new_chain()
    for position in range(2):
        append(chain, position, b"%d" % position)
    requests = send_all(chain)
    assert [(it.verb, it.name) for it in requests] == [
        (RequestVerb.CREATE, slot_name(RUN, number)) for number in range(2)
    ]
    last = requests[1].slot
    assert last is not None
    slot, body = decode_slot(b"".join(last.data))
    assert (slot.number, slot.run, slot.writer, bytes(body)) == (1, RUN, RUN.writer, b"1")


def test_slots_are_confirmed_in_the_order_of_the_chain() -> None:
    chain = new_chain()
    for position in (10, 20, 30):
        append(chain, position)
    first, second, third = send_all(chain)
    chain.created(third, Created.CREATED, 0.0)
    chain.created(second, Created.CREATED, 0.0)
    assert (chain.confirmed_position, chain.take_confirmed()) == (0, [])
    chain.created(first, Created.CREATED, 0.0)
    assert chain.confirmed_position == 30
    assert [it.position for it in chain.take_confirmed()] == [10, 20, 30]


def test_an_end_is_confirmed_before_what_comes_in_the_next_run() -> None:
    chain = new_chain()
    following = chain.end_run(10, 1)
    append(chain, 20)
    end, data = send_all(chain)
    assert following == Run(8, RUN.writer)
    assert data.name == slot_name(following, 0)
    chain.created(data, Created.CREATED, 0.0)
    assert chain.confirmed_position == 0
    chain.created(end, Created.CREATED, 0.0)
    assert chain.confirmed_position == 20


def test_an_unclear_answer_sends_the_same_bytes_to_the_same_name_after_a_pause() -> None:
    chain = new_chain()
    slot = append(chain, 10)
    bytes_sent = b"".join(slot.data)
    chain.created(send(chain), Created.UNKNOWN, 0.0)
    assert chain.next_request(0.0) is None
    again = send(chain, chain.next_due())
    assert (again.verb, again.name, b"".join(slot.data)) == (RequestVerb.CREATE, slot.name, bytes_sent)


def test_a_name_that_is_taken_is_compared_and_our_own_earlier_try_counts() -> None:
    chain = new_chain()
    slot = append(chain, 10)
    data = b"".join(slot.data)
    chain.created(send(chain), Created.EXISTS, 0.0)
    compare = send(chain)
    assert (compare.verb, compare.name) == (RequestVerb.COMPARE, slot.name)
    chain.got(compare, data[: compare.size], 0.0)
    assert chain.confirmed_position == 10


def test_a_fence_in_our_slot_ends_it_and_nothing_is_confirmed_any_more() -> None:
    chain = new_chain()
    append(chain, 10)
    append(chain, 20)
    first, second = send_all(chain)
    chain.created(first, Created.EXISTS, 0.0)
    chain.got(send(chain), fence(RUN, 0), 0.0)
    assert chain.fenced == "the name was taken over by process 4711 on machine-b"
    assert chain.fence is not None
    chain.created(second, Created.CREATED, 0.0)
    assert chain.confirmed_position == 0
    assert not chain.may_append
    assert (chain.next_request(9.9), chain.next_due(), chain.probe(9.9)) == (None, inf, None)


def test_so_does_anything_else_that_is_not_ours() -> None:
    chain = new_chain()
    append(chain, 10)
    chain.created(send(chain), Created.EXISTS, 0.0)
    chain.got(send(chain), b"something", 0.0)
    assert chain.fenced == "the name was taken over by another process"


def test_a_conflict_without_an_object_means_to_send_again() -> None:
    """S3 answers 409 when two creates meet and neither may have won, and a client may take that for "exists"."""
    chain = new_chain()
    append(chain, 10)
    chain.created(send(chain), Created.EXISTS, 0.0)
    chain.got(send(chain), None, 0.0)
    assert chain.fenced is None
    assert send(chain, chain.next_due()).verb is RequestVerb.CREATE


def test_a_comparison_without_an_answer_is_repeated_later() -> None:
    chain = new_chain()
    append(chain, 10)
    chain.created(send(chain), Created.EXISTS, 0.0)
    chain.failed(send(chain), 0.0)
    assert chain.next_request(0.0) is None
    assert send(chain, chain.next_due()).verb is RequestVerb.COMPARE


def test_a_create_that_takes_long_is_sent_four_times_each_after_twice_the_pause() -> None:
    chain = new_chain()
    append(chain, 10)
    first, *others = [send(chain, now) for now in (0.0, 1.0, 3.0, 7.0)]
    assert chain.next_due() == inf
    assert {it.verb for it in others} == {RequestVerb.CREATE}
    chain.created(others[1], Created.CREATED, 8.0)
    assert chain.confirmed_position == 10
    chain.created(first, Created.EXISTS, 9.0)  # the losers' answers say nothing new
    assert chain.fenced is None
    assert chain.next_request(1e9) is None


def test_a_slot_is_sent_again_only_after_its_patience() -> None:
    chain = new_chain()
    append(chain, 10)
    due = [0.0]
    for _ in range(3):
        send(chain, due[-1])
        due.append(chain.next_due())
        assert chain.next_request(due[-1] - 0.01) is None
    assert due == [0.0, 1.0, 3.0, 7.0]


def test_a_request_that_fails_while_others_hang_is_repeated() -> None:
    chain = new_chain()
    append(chain, 10)
    first, *_ = [send(chain, now) for now in (0.0, 1.0, 3.0, 7.0)]
    chain.created(first, Created.UNKNOWN, 8.0)
    assert chain.next_due() == 7.0 + 4.0
    assert send(chain, 11.0).verb is RequestVerb.CREATE


@dataclass
class HangingServers:
    """A store of which one server in five doesn't answer. A request gets another server each time, and 5 s."""

    random: Random
    now: float = 0.0
    under_way: dict[ChainRequest, float] = field(default_factory=dict)

    def serve(self, chain: Chain, until: float) -> None:
        while self.now < until:
            for request in send_all(chain, self.now):
                self.under_way[request] = self.now + (5.0 if self.random.random() < 0.2 else 0.005)
            next_answer = min(self.under_way.values(), default=inf)
            self.now = min(until, next_answer, max(self.now, chain.next_due()))
            for request in [it for it, answer in self.under_way.items() if answer <= self.now]:
                sent = self.now - request.sent_at
                del self.under_way[request]
                chain.created(request, Created.UNKNOWN if sent >= 5.0 else Created.CREATED, self.now)


def test_one_server_in_five_that_hangs_does_not_hold_up_confirmations_for_long() -> None:
    """By two requests for each slot, one slot in 25 would wait until they end, and with it all that come after."""
    chain, servers = new_chain(depth=8), HangingServers(Random(1))
    waits, confirmed = [0.0], 0.0
    for number in range(2000):
        if chain.may_append:
            append(chain, number)
        servers.serve(chain, 0.05 * number)
        if chain.take_confirmed():
            waits.append(servers.now - confirmed)
            confirmed = servers.now
    assert max(waits) <= 6.0
    assert sum(it > 1.0 for it in waits) <= 10


def test_patience_follows_the_latency_of_the_store() -> None:
    chain = new_chain()
    for _ in range(3):
        append(chain, 10)
        chain.created(send(chain, 0.0), Created.CREATED, 0.1)
    append(chain, 20)
    send(chain, 1.0)
    assert chain.next_due() == 1.0 + 3 * 0.1


@dataclass
class SlowServers:
    """A store that needs `times` for an answer, each as often as the others. Its slots are sent one after the other."""

    random: Random
    times: list[float]
    now: float = 0.0
    sent: int = 0

    def store(self, chain: Chain) -> float:
        """Return how long it took until the next slot was confirmed."""
        append(chain, 1)
        began, answers = self.now, dict[ChainRequest, float]()
        while not chain.take_confirmed():
            for request in send_all(chain, self.now):
                answers[request] = self.now + self.random.choice(self.times)
                self.sent += 1
            self.now = min(*answers.values(), chain.next_due())
            for request in [it for it, answer in answers.items() if answer <= self.now]:
                del answers[request]
                chain.created(request, Created.CREATED, self.now)
        return self.now - began


@pytest.mark.parametrize("latency", [0.005, 0.05])
def test_a_create_in_a_hundred_that_is_slow_holds_up_its_slot_for_little_more_than_another_create(
    latency: float,
) -> None:
    chain, servers = new_chain(), SlowServers(Random(1), [4 * latency] + 99 * [latency])
    for _ in range(200):
        servers.store(chain)
    times = sorted(servers.store(chain) for _ in range(1000))
    assert times[-3] <= 2.35 * latency  # six are slow
    assert servers.sent <= 1.02 * 1200


def test_a_store_whose_answers_take_as_long_as_usual_gets_each_slot_once() -> None:
    chain, servers = new_chain(), SlowServers(Random(1), [0.01, 0.011, 0.012, 0.013])
    for _ in range(1000):
        servers.store(chain)
    assert servers.sent == 1000


@pytest.mark.parametrize("times", [[0.01, 0.01, 0.02], [0.001, 0.004, 0.04], [0.01, 0.04, 0.04]])
def test_few_slots_are_sent_early_however_much_a_store_varies(times: list[float]) -> None:
    chain, servers = new_chain(), SlowServers(Random(1), times)
    for _ in range(1000):
        servers.store(chain)
    assert 1010 <= servers.sent <= 1020


def test_a_comparison_and_a_large_slot_are_never_early() -> None:
    chain, servers = new_chain(), SlowServers(Random(1), [0.01])
    for _ in range(100):
        servers.store(chain)
    append(chain, 1, bytes(1 << 20))
    send(chain, servers.now)
    append(chain, 2)
    chain.created(send(chain, servers.now), Created.EXISTS, servers.now)
    send(chain, servers.now)
    assert chain.next_due() == servers.now + 0.05


def test_only_so_many_slots_are_under_way_and_unconfirmed() -> None:
    chain = new_chain(depth=2)
    append(chain, 1)
    stuck = send(chain)
    for position in range(2, MOST_UNCONFIRMED + 1):
        assert chain.may_append
        append(chain, position)
        if position == 2:
            assert not chain.may_append
        chain.created(send(chain), Created.CREATED, 0.0)
    assert not chain.may_append
    chain.created(stuck, Created.CREATED, 0.0)
    assert chain.may_append
    assert chain.confirmed_position == MOST_UNCONFIRMED


def test_a_probe_finds_the_fence_of_the_next_owner_when_nothing_is_sent() -> None:
    chain = new_chain()
    probe = chain.probe(0.0)
    assert probe is not None
    assert chain.probe(0.0) is None
    chain.got(probe, None, 0.0)
    assert chain.fenced is None
    probe = chain.probe(0.0)
    assert probe is not None
    chain.got(probe, fence(RUN, 0), 0.0)
    assert chain.fenced is not None


def test_a_probe_that_finds_what_we_have_created_since_means_nothing() -> None:
    chain = new_chain()
    probe = chain.probe(0.0)
    assert probe is not None
    slot = append(chain, 10)
    chain.created(send(chain), Created.CREATED, 0.0)
    chain.got(probe, slot.header, 0.0)
    assert chain.fenced is None


def test_a_run_may_be_followed_by_a_later_one_than_the_next() -> None:
    chain = new_chain()
    later = Run(RUN.number + 3, RUN.writer)
    assert chain.end_run(1, 1, later) == later
    assert append(chain, 2).name == slot_name(later, 0)


def test_a_slot_is_compared_although_its_first_create_hangs() -> None:
    chain = new_chain()
    append(chain, 0)
    hanging = send(chain)
    repeated = send(chain, 1.0)
    chain.created(repeated, Created.EXISTS, 1.1)
    comparison = send(chain, 1.1)
    assert (comparison.verb, chain.next_request(1.1)) == (RequestVerb.COMPARE, None)
    chain.got(comparison, b"".join(hanging.data), 1.2)
    assert len(chain.take_confirmed()) == 1


def test_a_comparison_that_hangs_is_sent_a_second_time() -> None:
    chain = new_chain()
    append(chain, 0)
    chain.created(send(chain), Created.EXISTS, 0.0)
    first = send(chain)
    assert chain.next_due() == 1.0
    second = send(chain, 1.0)
    assert (first.verb, second.verb, chain.next_due()) == (RequestVerb.COMPARE, RequestVerb.COMPARE, 3.0)


SLOT = 8 << 20


@dataclass
class SlowLine:
    """A line that all requests under way share, and a store that gives each of them 30 s."""

    rate: float  # bytes per second
    now: float = 0.0
    left: dict[ChainRequest, float] = field(default_factory=dict)

    def serve(self, chain: Chain, step: float = 0.25) -> None:
        for request in send_all(chain, self.now):
            assert request.slot is not None
            self.left[request] = request.slot.size
        self.now += step
        share = self.rate * step / max(1, len(self.left))
        for request in list(self.left):
            self.left[request] -= share
            has_arrived = self.left[request] <= 0
            if has_arrived or self.now - request.sent_at >= 30:
                del self.left[request]
                chain.created(request, Created.CREATED if has_arrived else Created.UNKNOWN, self.now)


@pytest.mark.parametrize("megabits", [3, 4, 20, 100, 1000])
def test_large_slots_get_over_a_slow_line(megabits: int) -> None:
    """All of them at once would take longer than their requests have, and so would their repetitions."""
    chain, line = new_chain(depth=8), SlowLine(megabits * 1e6 / 8)
    for position in range(8):
        append(chain, position, bytes(SLOT))
    needed = 8 * SLOT / line.rate
    while chain.confirmed_position < 7 and line.now < 1000:
        line.serve(chain)
    assert line.now <= 2 * needed + 30 + 2


def test_a_small_slot_passes_large_ones_on_a_slow_line() -> None:
    chain, line = new_chain(depth=8), SlowLine(0.5e6)
    for position in range(3):
        append(chain, position, bytes(SLOT))
    while line.now < 60:
        line.serve(chain)
    append(chain, 3)
    assert send(chain, line.now).name == slot_name(RUN, 3)


def test_a_large_slot_that_hangs_is_sent_a_second_time_when_the_line_has_had_time_for_it() -> None:
    chain = new_chain()
    append(chain, 10, bytes(SLOT))
    chain.created(send(chain), Created.CREATED, 1.0)
    append(chain, 20, bytes(SLOT))
    send(chain, 1.0)
    assert chain.next_request(3.9) is None
    assert chain.next_due() == pytest.approx(4.0)
    assert send(chain, 4.0).name == slot_name(RUN, 1)
