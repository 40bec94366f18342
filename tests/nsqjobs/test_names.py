from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.names import is_valid_name
from nsqjobs.names import topic_name


@pytest.mark.parametrize("queue", ["celery", "a.b-c_D9", "x" * 64])
def test_a_valid_name_is_kept(queue: str) -> None:
    assert topic_name(queue) == queue


def test_a_name_that_is_not_valid_stays_readable() -> None:
    assert topic_name("billing: eu/west").startswith("billing_eu_west-")


@given(st.lists(st.text(min_size=1), min_size=2, unique=True), st.booleans())
def test_every_queue_has_a_valid_topic_of_its_own(queues: list[str], ephemeral: bool) -> None:
    names = [topic_name(queue, ephemeral=ephemeral) for queue in queues]
    assert all(map(is_valid_name, names))
    assert len(set(names)) == len(queues)


def test_a_queue_without_a_name() -> None:
    with pytest.raises(ValueError, match="without a name"):
        topic_name("")
