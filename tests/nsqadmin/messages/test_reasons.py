"""Reasons of buried messages, for users who do not see messages: masked or hidden, and selected by name."""

from __future__ import annotations

import pytest

from nsqadmin.messages.buried import BuriedSummary, NodeReason, NodeSummary, Operation
from nsqadmin.messages.lists import BadRequest
from nsqadmin.messages.masking import parse_masks
from nsqadmin.messages.reasons import Reasons, ReasonSight

CARD = "no such card 4929123412341234"
OTHER = "no such card 4929123412345678"
OF_NSQD = "5 attempts, the last one timed out"
LISTED = (CARD, OTHER, OF_NSQD)


def reasons(*masks: str, all_see_payload: bool = False) -> Reasons:
    return Reasons(parse_masks(masks), all_see_payload=all_see_payload)


def sight(*masks: str, whole: bool = False) -> ReasonSight:
    return ReasonSight(reasons(*masks), is_whole=whole)


@pytest.mark.parametrize(
    ("masks", "shown"),
    [
        ((), "***"),
        ((r"\d{16}",), "no such card ***"),
        (("$.card",), "***"),  # a path says nothing about a text that is no JSON
        (("$.card", r"\d{16}"), "no such card ***"),
    ],
)
def test_a_reason_is_masked_as_a_body_is_and_hidden_without_a_rule(masks: tuple[str, ...], shown: str) -> None:
    assert sight(*masks).shown(CARD) == shown
    assert sight(*masks, whole=True).shown(CARD) == CARD


@pytest.mark.parametrize(
    "words",
    [
        "1 attempts",
        "65535 attempts, the last one requeued",
        OF_NSQD,
        "waited for more than 1h30m (ttl)",
        "waited for more than its nsq-ttl (ttl)",
        "more waited than the channel may hold (overflow)",
        "",
    ],
)
def test_words_of_nsqd_itself_are_always_shown(words: str) -> None:
    assert sight().shown(words) == words


@pytest.mark.parametrize(
    "words",
    ["4929123412341234 attempts", "waited for more than 4929123412341234s (ttl)", f"{OF_NSQD}: {CARD}", "\udc80"],
)
def test_what_only_looks_like_them_is_hidden(words: str) -> None:
    assert sight().shown(words) == "***"


def test_a_hidden_reason_is_selected_by_its_name() -> None:
    here = reasons(r"\d{16}")
    names = [here.name(it) for it in LISTED]
    assert len(set(names)) == 3
    assert names[2] == OF_NSQD
    assert "4929" not in names[0]
    assert [ReasonSight(here, is_whole=False).meant(it, LISTED) for it in names] == list(LISTED)
    assert ReasonSight(here, is_whole=True).meant(names[0], LISTED) == CARD  # in a link that a colleague has sent


def test_the_text_of_a_group_is_selected_by_its_name_where_some_may_not_see_it() -> None:
    here = reasons(r"card \d{16} of \w+")
    listed = ("card 4929123412341234 of Ana", "card 4929123412345678 of Ana", "out of paper")
    colleague = ReasonSight(here, is_whole=True)
    name = colleague.name_of_part(" of Ana", listed)
    assert "Ana" not in name
    assert colleague.meant(name, listed) == " of Ana"
    with pytest.raises(BadRequest, match="payload"):
        ReasonSight(here, is_whole=False).meant(name, listed)
    assert colleague.name_of_part("out of ", ["out of 5", "out of 6"]) == "out of "


def test_a_part_of_a_reason_is_hidden_though_no_mask_finds_it() -> None:
    here = reasons(r"card \d{16} of \w+")
    listed = ["card 4929123412341234 of Ana"]
    assert here.public_part(" of Ana", listed) == "***"
    assert here.public_part(listed[0], listed) == "***"
    assert here.public_part("", listed) == ""
    assert here.public_part("out of ", ["out of 5"]) == "out of "
    assert ReasonSight(here, is_whole=False).shown_part(" of Ana") == "***"
    assert ReasonSight(here, is_whole=True).shown_part(" of Ana") == " of Ana"


def test_names_cannot_be_found_by_trying_all_texts_elsewhere() -> None:
    assert reasons().name(CARD) != reasons().name(CARD)


@pytest.mark.parametrize("asked", ["4929", "no such card", CARD, "attempts", "#0123456789ab"])
def test_who_does_not_see_reasons_cannot_find_out_what_they_contain(asked: str) -> None:
    with pytest.raises(BadRequest, match="payload"):
        sight(r"\d{16}").meant(asked, LISTED)


def test_who_sees_reasons_looks_for_any_text() -> None:
    assert [sight(whole=True).meant(it, LISTED) for it in ("4929", "#1", "#0123456789ab", "")] == [
        "4929",
        "#1",
        "#0123456789ab",
        "",
    ]


def test_where_everybody_sees_messages_nothing_is_hidden_and_addresses_have_the_text() -> None:
    here = reasons(all_see_payload=True)
    assert (here.name(CARD), here.public(CARD)) == (CARD, CARD)


def test_a_summary_counts_each_hidden_reason_by_itself_and_masks_what_kicks_select() -> None:
    job = Operation(verb="kick", done=1, limit=2, rate=0.0, reason=CARD, who="ana", started_at=0.0)
    listed = tuple(NodeReason(reason=it, client="a", count=at) for at, it in enumerate((CARD, OTHER), 1))
    summary = BuriedSummary(nodes=(NodeSummary(node="n1", count=3, reasons=listed, job=job, ended=job),))
    here = reasons()
    seen = summary.seen(ReasonSight(here, is_whole=False))
    assert [(it.text, it.name, it.count) for it in seen.reasons] == [
        ("***", here.name(OTHER), 2),
        ("***", here.name(CARD), 1),
    ]
    assert "4929" not in repr(seen)
    assert summary.seen(ReasonSight(here, is_whole=True)).nodes[0].job == job
