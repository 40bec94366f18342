from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.go_import.records import Digest, GoMessage, SplitResult, number_of, split_records
from nsqd.go_import.repeats import RepeatFilter, RepeatSurvey
from tests.support.go_data import Message, messages

SPECIFIED = bytes.fromhex("0000001f18e9e33bdd808c850002") + b"18a269aee2269000hello"
LARGEST = 1000 + 26


def taken(data: bytes) -> tuple[SplitResult, list[GoMessage]]:
    found: list[GoMessage] = []
    return split_records(data, largest=LARGEST, messages=found), found


def test_the_record_of_the_specification() -> None:
    assert taken(SPECIFIED) == (SplitResult(35, 30), [(0x18E9E33BDD808C85, 2, b"18a269aee2269000", b"hello")])
    assert Message(b"18a269aee2269000", 0x18E9E33BDD808C85, 2, b"hello").record == SPECIFIED


@given(st.integers(0, 30), st.integers(0, 400))
def test_wherever_the_data_ends_whole_records_are_taken(count: int, missing: int) -> None:
    written = list(messages(count))
    data = b"".join(it.record for it in written)
    data = data[: max(0, len(data) - missing)]
    found, got = taken(data)
    assert [Message(it[2], it[0], it[1], it[3]) for it in got] == written[: len(got)]
    assert found.position == sum(len(it.record) for it in written[: len(got)])
    rest = written[len(got)].record if len(got) < count else b""
    assert len(data) - found.position < max(1, len(rest))
    assert found.needed in (30, len(rest))


@pytest.mark.parametrize("length", [-1, 0, 25, LARGEST + 1, 1 << 30])
@pytest.mark.parametrize("rest", [0, 5, 2000])
def test_a_length_that_cannot_be_is_no_record(length: int, rest: int) -> None:
    found, got = taken(SPECIFIED + length.to_bytes(4, "big", signed=True) + bytes(rest))
    assert found == SplitResult(35, 0)
    assert len(got) == 1


@pytest.mark.parametrize(
    ("message_id", "number"),
    [
        (b"18a269aee2269000", 0x18A269AEE2269000),
        (b"ffffffffffffffff", (1 << 64) - 1),
        (b"18A269AEE2269000", None),
        (b"18a269aee226900 ", None),
        (b"0x18a269aee22690", None),
        (b"18a2_69aee226900", None),
        (b"+18a269aee226900", None),
        (bytes(16), None),
    ],
)
def test_only_sixteen_lower_case_digits_are_a_number(message_id: bytes, number: int | None) -> None:
    assert number_of(message_id) == number


@given(st.lists(st.integers(0, 20)))
def test_exactly_what_came_before_is_repeated(numbers: list[int]) -> None:
    survey = RepeatSurvey()
    for number in numbers:
        survey.note(number)
    seen = RepeatFilter(survey)
    assert [seen.is_repeated(it) for it in numbers] == [it in numbers[:at] for at, it in enumerate(numbers)]


def test_ascending_ids_are_not_remembered() -> None:
    survey = RepeatSurvey()
    for number in range(1000):
        survey.note(number)
    assert not survey.suspects


@given(st.lists(st.integers(0, 20)), st.lists(st.integers(0, 20)))
def test_what_other_queues_had_is_repeated_too(others: list[int], own: list[int]) -> None:
    survey = RepeatSurvey(max(others, default=-1))
    for number in own:
        survey.note(number)
    seen = RepeatFilter(survey)
    for number in others:
        seen.is_repeated(number)
    assert [seen.is_repeated(it) for it in own] == [it in [*others, *own[:at]] for at, it in enumerate(own)]


def test_a_digest_sees_every_part_and_the_order() -> None:
    def digest(*found: tuple[int, int, int, bytes]) -> tuple[int, str]:
        made = Digest()
        for it in found:
            made.add(*it)
        return made.result()

    one, two = (1, 2, 3, b"x"), (4, 5, 6, b"y")
    others = [(9, 2, 3, b"x"), (1, 9, 3, b"x"), (1, 2, 9, b"x"), (1, 2, 3, b"z")]
    variants = [(one, two), (two, one), (one,), (), *[(other, two) for other in others]]
    assert len({digest(*it) for it in variants}) == len(variants)
    assert digest(*[one] * 5000) == digest(*[one] * 5000)
    assert digest(*[one] * 5000)[0] == 5000
