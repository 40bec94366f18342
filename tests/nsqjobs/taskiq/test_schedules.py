from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsqclient.core.publication import checked_key
from nsqjobs.taskiq.schedules import key_of


@given(st.text(min_size=1))
def test_every_id_has_a_key_that_nsqd_accepts(schedule_id: str) -> None:
    assert checked_key(key_of(schedule_id))


@given(st.text(), st.text())
def test_different_ids_have_different_keys(one: str, other: str) -> None:
    assert (key_of(one) == key_of(other)) == (one == other)


def test_an_ordinary_id_can_be_read_in_its_key() -> None:
    assert key_of("order-17") == "schedule.order-17"
