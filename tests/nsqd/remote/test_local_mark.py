from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.names import Run
from nsqd.remote.local_mark import Decision, LocalMark, decide, decode_mark, encode_mark
from tests.nsqcommon.remote.strategies import RUNS

ROOT = Run(7, "a" * 16)
MARK = LocalMark("node", ("a" * 16, "0" * 16), ROOT, "boot")


@given(st.builds(LocalMark, st.text(), st.lists(st.text()).map(tuple), RUNS, st.text()))
def test_a_mark_is_read_as_it_was_written(mark: LocalMark) -> None:
    assert decode_mark(encode_mark(mark)) == mark


def test_a_damaged_mark_is_no_mark() -> None:
    with pytest.raises(BadObject):
        decode_mark(encode_mark(MARK)[:-1])


@pytest.mark.parametrize(
    ("mark", "last_owner", "root", "expected"),
    [
        (MARK, "a" * 16, ROOT, Decision.CONTINUE),
        (MARK, "0" * 16, ROOT, Decision.CONTINUE),  # our fence was never created
        (MARK, "b" * 16, ROOT, Decision.ADOPT),
        (MARK, "a" * 16, Run(8, "a" * 16), Decision.ADOPT),  # a copy from before that root
        (MARK, "a" * 16, Run(6, "a" * 16), Decision.CONTINUE),  # died between mark and commit
        (MARK.proved(Run(8, "a" * 16)), "a" * 16, Run(8, "a" * 16), Decision.CONTINUE),
        (None, "a" * 16, ROOT, Decision.ADOPT),
    ],
)
def test_a_data_path_is_continued_if_it_is_what_the_last_owner_had(
    mark: LocalMark | None, last_owner: str, root: Run, expected: Decision
) -> None:
    assert decide(mark, "node", last_owner, root) is expected
