"""Groups of burial reasons: which reasons are one group, and by which text a node selects all of it and nothing else."""

from __future__ import annotations

from collections import Counter

from nsqadmin.messages.buried import BuriedSummary, NodeReason, NodeSummary, Reason
from nsqadmin.messages.reason_groups import grouped, is_named_by, most_frequent, parts_of, selecting_text

NO_ADDRESS = [f"no address of customer {number}" for number in range(1, 41)]


def reasons(*texts: str) -> tuple[Reason, ...]:
    listed = (NodeReason(reason=text, client="mail", count=count) for text, count in Counter(texts).items())
    return BuriedSummary(nodes=(NodeSummary(node="n1", count=len(texts), reasons=tuple(listed)),)).reasons


def test_reasons_that_differ_in_a_number_only_are_one_group() -> None:
    listed = reasons(*NO_ADDRESS, "the printer is on fire")
    first, second = grouped(listed)
    assert (first.text, first.count, len(first.reasons)) == ("no address of customer *", 40, 40)
    assert (second.text, second.count, second.clients, second.nodes) == (
        "the printer is on fire",
        1,
        ("mail",),
        ("n1",),
    )
    assert selecting_text(first, listed) == "no address of customer "


def test_a_group_of_one_reason_has_its_whole_text() -> None:
    listed = reasons("order 12 has no item 5")
    assert [it.text for it in grouped(listed)] == ["order 12 has no item 5"]
    assert selecting_text(grouped(listed)[0], listed) == "order 12 has no item 5"


def test_the_text_that_selects_a_group_is_in_no_other_reason() -> None:
    listed = reasons(
        "card 1 is above the limit", "card 2 is above the limit", "card of Ana is above the limit", "a card 7"
    )
    group = grouped(listed)[0]
    assert group.text == "card * is above the limit"
    assert selecting_text(group, listed) == ""  # both of its parts are in the reason about Ana, or in the last one
    assert selecting_text(group, listed[:2]) == " is above the limit"


def test_a_part_that_selects_a_group_may_be_a_shorter_one() -> None:
    listed = reasons("item 1 is not in the store", "item 2 is not in the store", "it is not in the store")
    assert selecting_text(grouped(listed)[0], listed) == "item "


def test_a_few_letters_select_no_group() -> None:
    listed = reasons("E1", "E2", "7", "8")
    assert {it.text: selecting_text(it, listed) for it in grouped(listed)} == {"E*": "", "*": ""}


def test_the_texts_by_which_groups_are_selected() -> None:
    assert list(parts_of([*NO_ADDRESS, "order 5", "order of Ana", NO_ADDRESS[0]])) == ["no address of customer "]


def test_the_most_frequent_errors_are_counted_by_pattern() -> None:
    counts = {"too dear: 452.53": 2, "too dear: 460.67": 1, "too dear: 499.10": 1, "no mail server": 3, "item 5": 1}
    assert most_frequent(counts, 2) == [("too dear: *.*", 4), ("no mail server", 3)]
    assert most_frequent(counts, 9)[-1] == ("item 5", 1)
    assert most_frequent({}, 5) == []


def test_a_pattern_names_exactly_its_reasons() -> None:
    assert is_named_by("too dear: 452.53", "too dear: *.*")
    assert is_named_by("too dear: 452.53", "too dear: 452.53")
    assert not is_named_by("too dear: 452.53", "too dear: 452.54")
    assert not is_named_by("too dear: 5", "too dear: *.*")
