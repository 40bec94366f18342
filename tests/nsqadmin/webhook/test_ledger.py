"""The changes of incidents that become posts: none twice, and an end for each beginning."""

from __future__ import annotations

from nsqadmin.webhook.ledger import LOST, Ledger
from tests.nsqadmin.webhook.incidents import change, opened, post
from tests.support.picture import NOW

KEY = opened().key


def told(ledger: Ledger, *kinds: str, present: bool = True, now: float = NOW, severity: str = "problem") -> list[str]:
    """Return the kinds of the posts for these changes of one incident."""
    changes = [change(kind, opened(severity=severity)) for kind in kinds]
    return [it.kind.value for it in ledger.posts_for(changes, lambda: {KEY} if present else set(), now)]


def test_an_incident_opens_gets_worse_and_closes() -> None:
    ledger = Ledger()
    assert told(ledger, "opened", severity="warning") == ["opened"]
    assert told(ledger) == []
    assert told(ledger, "worse") == ["worse"]
    assert told(ledger, "closed", present=False) == ["closed"]
    assert told(ledger, "opened") == ["opened"]


def test_after_a_restart_an_incident_does_not_open_twice() -> None:
    ledger = Ledger()
    ledger.restore([post("opened", severity="warning")])
    assert told(ledger, "opened", severity="warning") == []
    assert told(ledger, "opened", severity="problem") == ["worse"]
    assert told(ledger, "closed", present=False) == ["closed"]


def test_one_that_opened_while_it_was_muted_is_new_to_receivers() -> None:
    assert told(Ledger(), "worse") == ["opened"]
    assert told(Ledger(), "closed") == []


def test_one_that_is_gone_without_a_change_is_closed() -> None:
    """It ended while nsqadmin was down."""
    ledger = Ledger()
    told(ledger, "opened")
    assert told(ledger, present=False, now=NOW) == []
    assert told(ledger, present=True, now=NOW + 1) == []  # it was away for a moment
    assert told(ledger, present=False, now=NOW + 2) == []
    assert told(ledger, present=False, now=NOW + LOST) == []
    (closed,) = ledger.posts_for((), set, NOW + 2 + LOST)
    assert (closed.kind.value, closed.at) == ("closed", NOW + 2)
    assert told(ledger, present=False, now=NOW + 1000) == []
