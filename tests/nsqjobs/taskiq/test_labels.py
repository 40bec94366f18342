from __future__ import annotations

import pytest

from nsqjobs.taskiq.labels import delay_of, queue_of, retries_of


@pytest.mark.parametrize(("said", "delay"), [(5, 5.0), (0.5, 0.5), ("2", 2.0), ("0.25", 0.25), (None, 0.0), (-1, -1.0)])
def test_delay_may_be_a_number_or_text(said: object, delay: float) -> None:
    assert delay_of({"delay": said}) == delay


def test_without_the_label_there_is_no_delay() -> None:
    assert delay_of({}) == 0


@pytest.mark.parametrize("said", ["soon", "", "nan", "inf", [1]])
def test_a_delay_that_is_no_number_is_refused(said: object) -> None:
    with pytest.raises(ValueError, match="expected seconds"):
        delay_of({"delay": said})


def test_the_queue_is_the_label_s_or_the_broker_s() -> None:
    assert queue_of({"queue_name": "mail"}, "tasks") == "mail"
    assert queue_of({"queue_name": ""}, "tasks") == "tasks"
    assert queue_of({}, "tasks") == "tasks"


@pytest.mark.parametrize(("said", "retries"), [(2, 2), ("3", 3), ("x", 0), (-1, 0)])
def test_retries(said: object, retries: int) -> None:
    assert retries_of({"_retries": said}) == retries
    assert retries_of({}) == 0
