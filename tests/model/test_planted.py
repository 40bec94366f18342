"""Do the state machines notice? Each bug is planted into the broker, and a short run of the machine has to fail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.model.test_broker_model import FailingMachine
from tests.model.test_groups_model import GroupsMachine
from tests.model.test_keys_model import KeysMachine
from tests.model.test_leases_model import Leasing
from tests.model.test_ledger_model import LedgerMachine
from tests.planted.planting import bugs_for, planted

# The rarest needs a tenth of the searches. Many short searches find a bug sooner than one long one, in which Hypothesis
# tries five variants of each example from the tenth on.
SEARCHES: Final = 600
# Searches that find a bug come first, if that isn't the first one. If a machine has changed, another search finds the bug,
# which only takes longer.
FINDS: Final = {
    ("broker model", "the limit of attempts is off by one"): (2,),
    ("broker model", "the messages of a consumer that has left take no place"): (3,),
    ("broker model", "what is published in one turn is stored backwards"): (1,),
    ("groups model", "a restart loses the order of a group"): (1,),
    ("groups model", "the place of a message that failed is not freed"): (1,),
    ("groups model", "a group is stopped by a message that was cancelled"): (6,),
    ("groups model", "the journal is not told that a held message was delivered"): (1,),
    ("groups model", "an action on a group passes over deferred messages"): (3,),
    ("groups model", "a crash makes messages new again that were buried with their group"): (2,),
    ("groups model", "a message is held and buried, if its group was buried"): (3,),
    ("ledger model", "what waits for its time is taken back without the journal"): (3,),
    ("keys model", "a key is forgotten after half of the window"): (16,),
    ("ledger model", "attempts go down"): (363,),
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


@contextmanager
def same_searches() -> Iterator[None]:
    """Have a search try the same whatever other tests have loaded.

    Hypothesis also tries numbers from the sources of all our modules that are loaded at the moment. With others a search
    may miss its bug, and looking for one that finds it takes minutes.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(providers, "_get_local_constants", Constants)
        providers.CONSTANTS_CACHE.cache.clear()
        yield
    providers.CONSTANTS_CACHE.cache.clear()


def first_finding(machine: type[RuleBasedStateMachine], numbers: Iterable[int]) -> int | None:
    """Return the first of these numbers whose search finds something."""
    for number in numbers:
        one = type(machine.__name__, (machine,), {})  # of its own, as the seed stays with the class
        try:
            run_state_machine_as_test(seed(number)(one), settings=SHORT)
        except AssertionError:
            return number
    return None


@cache
def finds_without_a_bug(suite: str, number: int) -> bool:
    """Return whether the search finds something by itself. Many bugs are found by the same one."""
    with same_searches():
        return first_finding(MACHINES[suite], [number]) is not None


@pytest.mark.parametrize(("suite", "bug"), [(suite, bug) for suite in MACHINES for bug in bugs_for(suite)])
def test_a_planted_bug_is_found(suite: str, bug: str) -> None:
    with planted(bug), same_searches():
        number = first_finding(MACHINES[suite], (*FINDS.get((suite, bug), ()), *range(SEARCHES)))
    assert number is not None
    assert not finds_without_a_bug(suite, number), "the same search finds something without the bug, too"
