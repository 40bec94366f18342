"""Do the state machines notice? Each bug is planted into the broker, and a short run of the machine has to fail."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.model.test_broker_model import FailingMachine
from tests.model.test_keys_model import KeysMachine
from tests.model.test_leases_model import Leasing
from tests.planted.planting import bugs_for, planted

EXAMPLES: Final = 2_000  # the rarest needs a tenth; what is tried depends on the modules that are loaded
MACHINES: Final[dict[str, type[RuleBasedStateMachine]]] = {
    "broker model": FailingMachine,
    "keys model": KeysMachine,
    "leases model": Leasing,
}

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


@pytest.mark.parametrize(("suite", "bug"), [(suite, bug) for suite in MACHINES for bug in bugs_for(suite)])
def test_a_planted_bug_is_found(suite: str, bug: str) -> None:
    with planted(bug), pytest.raises(AssertionError):
        run_state_machine_as_test(MACHINES[suite], settings=SHORT)
