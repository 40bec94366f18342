"""Do the state machines notice? Each bug is planted into the broker, and a short run of the machine has to fail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
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
# The search that finds each bug soonest comes first. If a machine has changed, another search finds it, which only takes
# longer.
FINDS: Final[Mapping[str, Mapping[int, tuple[str, ...]]]] = {
    "broker model": {
        5: (
            "a kick goes to all channels of the topic",
            "a crash forgets buried messages",
            "a kick is not told to the journal",
            "the messages of a consumer that has left take no place",
            "a crash forgets a channel",
            "what times out does not come again",
            "the first channel of a topic misses what waited for it",
        ),
        7: (
            "the message is dropped instead of buried at the limit",
            "a buried message does not pin the log",
            "the limit of attempts is off by one",
            "a cursor that goes back does not pass over buried messages",
            "one message too many is in flight",
            "the place of a buried message is not freed",
            "what a consumer samples out takes a place for ever",
            "what is published in one turn is stored backwards",
        ),
    },
    "groups model": {
        0: (
            "a requeued message comes after the later ones of its group",
            "a message that waits for its backoff holds up nothing",
            "a group that has a free place again is not looked at",
            "a channel with groups has no limit of its own",
            "the place of a finished message is not freed",
        ),
        3: (
            "held messages are forgotten when the rules change",
            "an action on a group is about all groups",
            "an action on a group passes over deferred messages",
            "a message is held and buried, if its group was buried",
        ),
        6: (
            "the place of a message that failed is not freed",
            "a crash forgets held messages",
            "a group is stopped by a message that was cancelled",
            "the journal is not told that a held message was delivered",
        ),
        8: (
            "two messages of an ordered group are in flight",
            "a restart loses the order of a group",
            "a crash makes messages new again that were buried with their group",
        ),
    },
    "ledger model": {
        4: (
            "a buried message does not pin the log",
            "a crash forgets buried messages",
            "an edit that a crash has interrupted loses the message",
            "a snapshot of the journal forgets how to undo an edit",
            "what waits for its time is taken back without the journal",
        ),
        5: (
            "an edit leaves what it replaces",
            "a channel that goes back runs what was replaced",
            "the neighbour of what is taken back goes as well",
            "what was taken back stays in the heap",
        ),
        6: (
            "a cursor that goes back does not pass over buried messages",
            "a crash brings back what an edit has replaced",
            "a crash forgets held messages",
            "a held message does not pin the log",
            "a crash forgets that it was moved",
        ),
        363: ("attempts go down",),
    },
    "keys model": {
        7: (
            "the key of a deferred message is forgotten with the window",
            "a start forgets keys",
            "a cancel does not free the key",
        ),
        16: ("a key is forgotten after half of the window",),
    },
    "leases model": {
        8: (
            "one message too many is in flight",
            "a holder may answer for another one",
        ),
    },
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


def finds_without_a_bug(suite: str, number: int) -> bool:
    with same_searches():
        return first_finding(MACHINES[suite], [number]) is not None


@pytest.mark.parametrize(("suite", "number"), [(suite, number) for suite in FINDS for number in FINDS[suite]])
def test_without_a_bug_a_search_finds_nothing(suite: str, number: int) -> None:
    assert not finds_without_a_bug(suite, number)


@pytest.mark.parametrize(("suite", "bug"), [(suite, bug) for suite in MACHINES for bug in bugs_for(suite)])
def test_a_planted_bug_is_found(suite: str, bug: str) -> None:
    known = [number for number, bugs in FINDS[suite].items() if bug in bugs]
    with planted(bug), same_searches():
        number = first_finding(MACHINES[suite], (*known, *range(SEARCHES)))
    assert number is not None
    assert number in known or not finds_without_a_bug(suite, number), "the same search finds something without the bug"
