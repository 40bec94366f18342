"""Does the state machine notice? Each bug is planted into the broker, and a short run of the machine has to fail."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.test_broker_model import FailingMachine
from tests.support.buried_bugs import BUGS

EXAMPLES = 2_000  # the rarest needs a tenth; what is tried depends on the modules that are loaded

SHORT = settings(
    max_examples=EXAMPLES,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(FailingMachine, settings=SHORT)
