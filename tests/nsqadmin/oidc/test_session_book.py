"""What a process remembers of sessions."""

from __future__ import annotations

from dataclasses import replace

from nsqadmin.oidc.session import Session
from nsqadmin.oidc.session_book import MOST, SessionBook

OLD = Session(id="x", subject="u", user="ana", began=0.0, confirmed=0.0)
NEW = replace(OLD, version=1)


def test_the_newest_copy_counts_whichever_is_sent() -> None:
    book = SessionBook()
    assert book.newest(OLD) == OLD
    book.put(NEW)
    assert book.newest(OLD) == book.newest(NEW) == NEW
    newer = replace(OLD, version=2)  # of another nsqadmin
    assert book.newest(newer) == newer


def test_an_ended_session_stays_so() -> None:
    book = SessionBook()
    book.end(OLD)
    book.put(NEW)  # an answer of the provider that came too late
    assert book.newest(OLD) is book.newest(NEW) is None


def test_streams_end_with_their_session_only() -> None:
    book, ended = SessionBook(), list[str]()
    book.watch("x", lambda: ended.append("first"))
    leave = book.watch("x", lambda: ended.append("second"))
    book.watch("y", lambda: ended.append("other"))
    leave()
    leave()
    book.end(OLD)
    assert ended == ["first"]


def test_it_has_a_bound() -> None:
    book = SessionBook()
    for number in range(MOST + 1):
        book.end(replace(OLD, id=str(number)))
    assert book.newest(replace(OLD, id="1")) is None
    assert book.newest(replace(OLD, id="0")) is not None
