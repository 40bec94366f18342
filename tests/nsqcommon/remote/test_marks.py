from __future__ import annotations

import pytest
from hypothesis import given

from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.marks import (
    NodeMark,
    decode_gone,
    decode_hint,
    decode_node,
    encode_gone,
    encode_hint,
    encode_node,
)
from nsqcommon.remote.names import Run
from tests.nsqcommon.remote.strategies import RUNS


@given(RUNS)
def test_marks_are_read_as_they_were_written(run: Run) -> None:
    mark = NodeMark("node", run, 5)
    assert decode_node(encode_node(mark)) == mark
    assert decode_hint(encode_hint(run)) == run
    following = run.following("0" * 16)
    assert decode_gone(encode_gone(run, following)) == following


def test_a_mark_that_leads_back_is_refused_because_a_claimant_would_go_round_in_circles() -> None:
    run = Run(7, "0" * 16)
    with pytest.raises(BadObject):
        decode_gone(encode_gone(run, run))


def test_one_kind_of_mark_is_not_read_as_another() -> None:
    with pytest.raises(BadObject):
        decode_node(encode_hint(Run(7, "0" * 16)))
    with pytest.raises(BadObject):
        decode_hint(encode_node(NodeMark("node", Run(7, "0" * 16), 5)))
