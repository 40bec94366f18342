"""How long a session holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsqadmin.oidc.session import Session, State, load_session

DAY = 86_400.0
SESSION = Session(id="x", subject="u", user="ana", groups=("a", "b"), began=0.0, confirmed=0.0, refresh_token="r")


@pytest.mark.parametrize(
    ("now", "with_token", "without"),
    [
        (0, State.CONFIRMED, State.CONFIRMED),
        (299, State.CONFIRMED, State.CONFIRMED),
        (300, State.DUE, State.CONFIRMED),
        (3599, State.DUE, State.CONFIRMED),
        (3600, State.OVER, State.OVER),
        (-300, State.CONFIRMED, State.CONFIRMED),  # the clock of another nsqadmin is ahead
        (-301, State.OVER, State.OVER),
    ],
)
def test_it_is_confirmed_then_due_then_over(now: float, with_token: State, without: State) -> None:
    assert SESSION.state(now, longest=DAY) is with_token
    assert replace(SESSION, refresh_token="").state(now, longest=DAY) is without


def test_the_longest_time_counts_from_the_login() -> None:
    session = replace(SESSION, confirmed=900.0)
    assert session.state(999, longest=1000) is State.CONFIRMED
    assert session.state(1000, longest=1000) is State.OVER
    assert (session.ends_at(1000), session.asks_at(1000), session.asks_at(DAY)) == (1000, 1000, 1200)


def test_it_survives_the_cookie_and_other_versions_do_not() -> None:
    assert load_session(SESSION.dump()) == SESSION
    for other in (b"", b"[]", b"{}", b"null", b"[1,2,3,4,5,6,7,8,9]", b'["x","u","a",7,0,0,0,""]'):
        assert load_session(other) is None
