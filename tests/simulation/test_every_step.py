"""A script is cut at each call that changes the disk: a broker can always continue from what is left."""

from __future__ import annotations

import pytest

from tests.simulation import steps
from tests.simulation.disk import CHANGING, Call, Crash
from tests.support.lengths import IS_LONG, new_chance
from tests.support.quick import unless_quick


@pytest.mark.parametrize("ack", steps.ACKS)
def test_script_is_cut_at_each_kind_of_call(ack: str) -> None:
    """The long form cuts it at each call in each way, and with each value of --ack."""
    for call, crash, torn in steps.cuts(ack) if IS_LONG else short_form(ack):
        steps.cut(ack, call, crash, torn)


def short_form(ack: str) -> list[tuple[Call, Crash, float]]:
    chance = new_chance()
    chosen = steps.one_of_each_kind(ack, chance)
    return chance.sample(chosen, len(chosen) // unless_quick(1, quick=5))


def test_the_short_form_has_each_kind_of_call_and_each_way_to_end() -> None:
    chosen = [it for ack in steps.ACKS for it in steps.one_of_each_kind(ack, new_chance())]
    every = steps.cuts("written")
    assert {(call.kind, crash, torn) for call, crash, torn in chosen} == {
        (call.kind, crash, torn) for call, crash, torn in every
    }
    assert {crash for _, crash, _ in chosen} == set(Crash)
    files = {"node.json.tmp", "topology.json.tmp", "log.json", "journal.000001", "carried.000001.tmp"}
    assert files <= {call.path.name for call, _, _ in chosen}


def test_script_does_everything() -> None:
    done = steps.calls("written")
    assert {call.kind for call in done} == CHANGING - {"link"}, "only a folder as a store of objects has links"
    names = {call.path.name for call in done if call.kind == "sync"}
    assert {"node.json.tmp", "topology.json.tmp", "log.json", "journal.000001", "journal.000002"} <= names
    removed = [call.path.name for call in done if call.kind == "unlink"]
    assert {"journal.000001", f"{0:020}.log"} <= set(removed)
