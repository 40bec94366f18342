"""A script is cut at each call that changes the disk: a broker can always continue from what is left."""

from __future__ import annotations

import pytest

from tests.faults import steps
from tests.faults.disk import CHANGING


@pytest.mark.parametrize("ack", ["memory", "written", "synced"])
def test_script_is_cut_at_each_call(ack: str) -> None:
    for call in steps.calls(ack):
        for crash, torn in steps.crashes(call):
            try:
                steps.cut(ack, call, crash, torn)
            except BaseException as error:
                error.add_note(f"ack={ack}, {crash} at {call}, {torn} of it written")
                raise


def test_script_does_everything() -> None:
    done = steps.calls("written")
    assert {call.kind for call in done} == CHANGING
    names = {call.path.name for call in done if call.kind == "sync"}
    assert {"node.json.tmp", "topology.json.tmp", "log.json", "journal.000001", "journal.000002"} <= names
    removed = [call.path.name for call in done if call.kind == "unlink"]
    assert {"journal.000001", f"{0:020}.log"} <= set(removed)
