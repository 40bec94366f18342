from __future__ import annotations

import pytest
from hypothesis import given

from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.names import (
    Run,
    blob_name,
    fold_name,
    gone_name,
    parse_run,
    root_name,
    run_in,
    segment_object_name,
    slot_name,
    slots_prefix,
    writer_name,
)
from tests.nsqcommon.remote.strategies import RUNS

RUN = Run(42, "9f3c21ab7e5d0c44")


def test_a_run_is_written_with_ten_digits_so_that_lists_are_in_order() -> None:
    assert str(RUN) == "0000000042-9f3c21ab7e5d0c44"
    assert slot_name(RUN, 17) == "wal/0000000042-9f3c21ab7e5d0c44/00000017"
    assert slot_name(RUN, 17).startswith(slots_prefix(RUN))


@given(RUNS)
def test_a_name_is_read_as_it_was_written(run: Run) -> None:
    assert parse_run(str(run)) == run


@pytest.mark.parametrize(
    "text", ["", "42-9f3c21ab7e5d0c44", "0000000042-9f3c", "../0000000042-9f3c21ab7e5d0c44", 7, None]
)
def test_what_is_not_a_run_is_refused(text: object) -> None:
    with pytest.raises(BadObject, match="is not the name of a run"):
        parse_run(text)


def test_the_following_run_has_the_next_number_and_its_writer() -> None:
    assert RUN.following(writer_name(5)) == Run(43, "0000000000000005")


def test_a_topic_called_dot_dot_stays_within_the_prefix_of_its_node() -> None:
    assert "/../" not in f"/{segment_object_name('..', 'id', 0, 7, RUN)}"


@pytest.mark.parametrize(
    "name",
    [
        slot_name(RUN, 17),
        root_name(RUN),
        gone_name(RUN),
        fold_name(RUN, 3),
        blob_name(RUN, 3),
        segment_object_name("orders", "id", 0, 7, RUN),
    ],
)
def test_each_object_but_two_has_its_run_in_its_name(name: str) -> None:
    assert run_in(name) == RUN


@pytest.mark.parametrize(
    "name", ["node", "hint", "root/", f"wal/{RUN}", f"wal/{RUN}/x", "log/t.orders/id/0-7.log", "x"]
)
def test_other_names_have_no_run(name: str) -> None:
    assert run_in(name) is None
