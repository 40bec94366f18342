"""What the answer of an authorization server allows, and which answers are refused as a whole."""

from __future__ import annotations

import json

import pytest

from nsqd.auth.grants import AuthQuestion, GrantError, decode_grant


def grant(*authorizations: object, **fields: object) -> bytes:
    return json.dumps({"ttl": 60, "authorizations": authorizations, **fields}).encode()


def entry(topic: str = ".*", channels: object = (".*",), permissions: object = ("subscribe", "publish")) -> object:
    return {"topic": topic, "channels": channels, "permissions": permissions}


@pytest.mark.parametrize(
    ("topic", "channels", "permissions", "publishes", "subscribes"),
    [
        ("^t$", [".*"], ["publish", "subscribe"], True, True),
        ("^t$", [".*"], ["publish"], True, False),
        ("^t$", [".*"], ["subscribe"], False, True),
        ("^t$", [".*"], [], False, False),
        ("^other$", [".*"], ["publish", "subscribe"], False, False),
        ("", [""], ["publish", "subscribe"], True, True),
        ("^t$", [], ["publish", "subscribe"], False, False),  # no channel matches, not even the empty one
        ("^t$", ["^c$"], ["publish", "subscribe"], False, True),
        ("^t$", ["^x$", "^$"], ["publish", "subscribe"], True, False),
        ("^t$", ["^x$", "c"], ["publish", "subscribe"], False, True),
    ],
)
def test_an_entry_allows_what_it_names(
    topic: str, channels: list[str], permissions: list[str], publishes: bool, subscribes: bool
) -> None:
    decoded = decode_grant(grant(entry(topic, channels, permissions)))
    assert (decoded.allows("t"), decoded.allows("t", "c")) == (publishes, subscribes)


def test_expressions_are_found_anywhere() -> None:
    decoded = decode_grant(grant(entry("order", ["arch"])))
    assert decoded.allows("new-orders", "search")
    assert not decoded.allows("new-odds", "search")


def test_one_entry_that_allows_is_enough() -> None:
    decoded = decode_grant(grant(entry("^a$", permissions=["publish"]), entry("^b$", permissions=["publish"])))
    assert [decoded.allows(name) for name in "abc"] == [True, True, False]


def test_an_answer_stays_the_same_however_many_names_are_asked_about() -> None:
    decoded = decode_grant(grant(entry("7$")))
    for _ in range(2):
        assert sum(decoded.allows(f"topic-{number}") for number in range(5000)) == 500


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"null",
        b"{}",
        b"[]",
        b'{"ttl":60',
        b'{"ttl":60}x',
        b'{"ttl":"60"}',
        b'{"ttl":60.0}',
        grant(ttl=0),
        grant(ttl=-1),
        grant(identity=1),
        grant(entry(topic="(")),
        grant(entry(channels=["("])),
        grant(entry(channels=".*")),
        grant(entry(channels=[1])),
        grant(entry(permissions=["publish", "admin"])),
        grant(entry(permissions=["Publish"])),
        grant("all"),
    ],
)
def test_an_answer_that_is_not_one(answer: bytes) -> None:
    with pytest.raises(GrantError):
        decode_grant(answer)


def test_names_of_fields_match_whatever_their_case_and_null_is_nothing() -> None:
    decoded = decode_grant(b'{"TTL":5,"Identity":"me","identity_url":null,"Authorizations":[null,{"Topic":null}]}')
    assert (decoded.ttl, decoded.identity, decoded.identity_url, len(decoded.entries)) == (5, "me", "", 2)


def test_the_reply_is_spelled_as_nsq_spells_it() -> None:
    decoded = decode_grant(grant(entry(), entry(), identity="<me>", identity_url="http://me"))
    assert decoded.reply == b'{"identity":"\\u003cme\\u003e","identity_url":"http://me","permission_count":2}'


def question(secret: bytes, *, tls: bool = False, common_name: str = "", remote_ip: str = "127.0.0.1") -> AuthQuestion:
    return AuthQuestion(
        secret,
        remote_ip=remote_ip,
        tls=tls,
        common_name=common_name,
        answer=lambda grant: None,
        drop=lambda: None,
    )


def test_the_query_is_sorted_and_escaped_as_a_form() -> None:
    asked = question(b"a b&\xff~", tls=True, common_name="my name", remote_ip="::1")
    assert asked.as_query() == "common_name=my+name&remote_ip=%3A%3A1&secret=a+b%26%FF~&tls=true"
    assert question(b"s").as_query() == "common_name=&remote_ip=127.0.0.1&secret=s&tls=false"


def test_trap_50_in_the_json_of_a_post_every_value_is_a_list() -> None:
    asked = question(b"s").as_json()
    assert asked == b'{"common_name":[""],"remote_ip":["127.0.0.1"],"secret":["s"],"tls":["false"]}'
    assert '"secret":["\ufffd\ufffd<"]'.replace("<", "\\u003c").encode() in question(b"\xff\xfe<").as_json()
