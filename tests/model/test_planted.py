"""Do the state machines notice? Each bug is planted into the broker, and a short run of the machine has to fail."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.model.test_broker_model import FailingMachine
from tests.model.test_keys_model import KeysMachine
from tests.model.test_leases_model import Leasing
from tests.model.test_ledger_model import LedgerMachine
from tests.planted.planting import bugs_for, planted

# The rarest needs a tenth of the searches; what is tried depends on the modules that are loaded. Many short searches
# find a bug sooner than one long one, in which Hypothesis tries five variants of each example from the tenth on.
SEARCHES: Final = 200
MACHINES: Final[dict[str, type[RuleBasedStateMachine]]] = {
    "broker model": FailingMachine,
    "ledger model": LedgerMachine,
    "keys model": KeysMachine,
    "leases model": Leasing,
}

SHORT = settings(
    max_examples=10,
    stateful_step_count=50,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def search(machine: type[RuleBasedStateMachine]) -> None:
    for number in range(SEARCHES):
        one = type(machine.__name__, (machine,), {})  # of its own, as the seed stays with the class
        run_state_machine_as_test(seed(number)(one), settings=SHORT)


@pytest.mark.parametrize(("suite", "bug"), [(suite, bug) for suite in MACHINES for bug in bugs_for(suite)])
def test_a_planted_bug_is_found(suite: str, bug: str) -> None:
    with planted(bug), pytest.raises(AssertionError):
        search(MACHINES[suite])
