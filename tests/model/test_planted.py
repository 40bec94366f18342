"""Do the state machines notice? Each bug is planted into the broker, and a short run of the machine has to fail."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.model.test_broker_model import FailingMachine
from tests.model.test_groups_model import GroupsMachine
from tests.model.test_keys_model import KeysMachine
from tests.model.test_leases_model import Leasing
from tests.model.test_ledger_model import LedgerMachine
from tests.planted.planting import bugs_for, planted

# The rarest needs a tenth of the searches; what is tried depends on the modules that are loaded. Many short searches
# find a bug sooner than one long one, in which Hypothesis tries five variants of each example from the tenth on.
SEARCHES: Final = 600
# Searches that find rare bugs come first: one if all tests were collected, and one if only these were. If a machine has
# changed, another search finds the bug, which only takes longer.
FINDS: Final = {
    "what waits for its time is taken back without the journal": (19, 51),
    "a key is forgotten after half of the window": (16,),
    "attempts go down": (363,),
}
MACHINES: Final[dict[str, type[RuleBasedStateMachine]]] = {
    "broker model": FailingMachine,
    "groups model": GroupsMachine,
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


def first_finding(machine: type[RuleBasedStateMachine], numbers: Iterable[int]) -> int | None:
    """Return the first of these numbers whose search finds something."""
    for number in numbers:
        one = type(machine.__name__, (machine,), {})  # of its own, as the seed stays with the class
        try:
            run_state_machine_as_test(seed(number)(one), settings=SHORT)
        except AssertionError:
            return number
    return None


@pytest.mark.parametrize(("suite", "bug"), [(suite, bug) for suite in MACHINES for bug in bugs_for(suite)])
def test_a_planted_bug_is_found(suite: str, bug: str) -> None:
    with planted(bug):
        number = first_finding(MACHINES[suite], (*FINDS.get(bug, ()), *range(SEARCHES)))
    assert number is not None
    assert first_finding(MACHINES[suite], [number]) is None, "the same search finds something without the bug, too"
