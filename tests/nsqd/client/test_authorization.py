"""What a client may do, and when that has to be asked again."""

from __future__ import annotations

import pytest

from nsqcommon.wire.commands import LineCommand
from nsqcommon.wire.faults import Fault, ProtocolError
from nsqd.auth.grants import AuthQuestion, Grant, GrantEntry
from nsqd.client.authorization import Authorization, Suspended


def grant(*topics: str, ttl: int = 60) -> Grant:
    entries = [GrantEntry.of(topic, [".*"], ["publish", "subscribe"]) for topic in topics]
    return Grant(ttl=ttl, identity="somebody", identity_url="http://where", entries=entries)


class Asked:
    """An authorization whose questions a test answers."""

    def __init__(self) -> None:
        self.questions: list[AuthQuestion] = []
        self.answers: list[Grant | None] = []
        self.authorization = Authorization(self.questions.append, "10.0.0.1")

    def ask(self) -> AuthQuestion:
        self.authorization.ask(tls=True, common_name="cn", answer=self.answers.append, drop=lambda: None)
        return self.questions[-1]

    def granted(self, *topics: str, ttl: int = 60) -> Authorization:
        self.authorization.begin(b"secret")
        self.ask()
        self.authorization.take_suspended()
        self.authorization.take(grant(*topics, ttl=ttl), 0.0)
        return self.authorization


def test_the_question_says_who_asks() -> None:
    asked = Asked()
    asked.authorization.begin(b"secret")
    question = asked.ask()
    assert (question.secret, question.remote_ip, question.tls, question.common_name) == (
        b"secret",
        "10.0.0.1",
        True,
        "cn",
    )
    assert question.waits


def test_auth_is_answered_with_what_was_granted() -> None:
    authorization = Asked().authorization
    reply = authorization.take(grant("a", "b"), 0.0)
    assert reply == b'{"identity":"somebody","identity_url":"http://where","permission_count":2}'
    assert (authorization.is_given, authorization.identity, authorization.identity_url) == (
        True,
        "somebody",
        "http://where",
    )


@pytest.mark.parametrize(
    ("answer", "fault"), [(None, Fault.AUTH_FAILED), (grant(), Fault.UNAUTHORIZED)], ids=["none", "empty"]
)
def test_auth_fails_without_a_grant(answer: Grant | None, fault: Fault) -> None:
    with pytest.raises(ProtocolError) as caught:
        Asked().authorization.take(answer, 0.0)
    assert caught.value.fault is fault


def test_auth_comes_first() -> None:
    with pytest.raises(ProtocolError, match="AUTH required before PUB"):
        Asked().authorization.check(b"PUB", "a", "", None, 0.0)


def test_auth_comes_once() -> None:
    with pytest.raises(ProtocolError, match="AUTH already set"):
        Asked().granted("a").begin(b"another")


def test_only_what_is_granted_is_allowed() -> None:
    authorization = Asked().granted("a")
    authorization.check(b"PUB", "a", "", None, 0.0)
    with pytest.raises(ProtocolError, match='AUTH failed for SUB on "b" "c"'):
        authorization.check(b"SUB", "b", "c", None, 0.0)


def test_what_has_expired_is_asked_anew_and_the_command_goes_on() -> None:
    asked = Asked()
    authorization = asked.granted("a", ttl=10)
    authorization.check(b"PUB", "a", "", None, 9.9)
    command = LineCommand([b"SUB", b"a", b"c"])
    with pytest.raises(Suspended):
        authorization.check(b"SUB", "a", "c", command, 10.0)
    assert asked.ask().secret == b"secret"
    assert authorization.take_suspended() is command
    assert authorization.take(grant("a", ttl=0), 11.0) is None
    authorization.check(b"SUB", "a", "c", command, 11.0)  # the command that asked may still use it
    with pytest.raises(Suspended):
        authorization.check(b"SUB", "a", "c", command, 11.0)


def test_nobody_waits_for_the_answer_when_the_client_has_gone() -> None:
    asked = Asked()
    question = asked.ask()
    asked.authorization.close()
    assert not question.waits
