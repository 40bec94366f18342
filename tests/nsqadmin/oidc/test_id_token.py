"""The rules for ID tokens, one by one."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import Any, Final

import pytest

from nsqadmin.oidc.id_token import (
    BadToken,
    Expected,
    Header,
    check_access_token,
    check_claims,
    header_of,
    keys_for,
)

NOW: Final = 1_800_000_000.0
EXPECTED: Final = Expected(issuer="https://idp", client_id="nsqadmin", nonce="n")
GOOD: Final = {"iss": "https://idp", "aud": "nsqadmin", "iat": NOW, "exp": NOW + 300, "nonce": "n", "sub": "u"}


def coded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def token(**header: Any) -> str:
    return f"{coded(json.dumps(header).encode())}.e30.c2ln"


def rsa(bits: int = 2048, **more: Any) -> dict[str, Any]:
    return {"kty": "RSA", "n": coded(b"\x80" + bytes(bits // 8 - 1)), "e": "AQAB", **more}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"aud": ["nsqadmin"]},
        {"aud": ["other", "nsqadmin"], "azp": "nsqadmin"},
        {"exp": NOW - 59},  # clocks differ a little
        {"iat": NOW + 59},
        {"nbf": NOW + 59},
        {"exp": NOW + 0.5},
    ],
)
def test_good_claims_pass(changes: dict[str, Any]) -> None:
    check_claims({**GOOD, **changes}, EXPECTED, NOW)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"iss": "https://idp/"}, "its issuer is"),
        ({"iss": None}, "its issuer is"),
        ({"aud": "other"}, "it is for"),
        ({"aud": []}, "it is for"),
        ({"aud": None}, "it is for"),
        ({"aud": "nsqadmin2"}, "it is for"),
        ({"aud": ["other", "nsqadmin"]}, "it was issued to"),
        ({"aud": ["other", "nsqadmin"], "azp": "other"}, "it was issued to"),
        ({"azp": "other"}, "it was issued to"),
        ({"exp": NOW - 60}, "it expired 60 s ago"),
        ({"exp": None}, "does not say when"),
        ({"exp": "tomorrow"}, "its exp is not a time"),
        ({"exp": True}, "its exp is not a time"),
        ({"exp": float("nan")}, "its exp is not a time"),
        ({"iat": None}, "does not say when"),
        ({"iat": NOW + 61}, "it was issued 61 s from now"),
        ({"nbf": NOW + 61}, "from now"),
        ({"nonce": "another"}, "its nonce"),
        ({"nonce": None}, "its nonce"),
        ({"nonce": "\ud800"}, "its nonce"),
        ({"sub": None}, "no subject"),
        ({"sub": ""}, "no subject"),
        ({"sub": "x" * 256}, "no subject"),
    ],
)
def test_claims_for_someone_else_or_another_time_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(BadToken, match=text):
        check_claims({**GOOD, **changes}, EXPECTED, NOW)


def test_at_a_refresh_the_nonce_may_be_missing_but_not_wrong_and_the_account_is_the_same() -> None:
    expected = Expected(issuer="https://idp", client_id="nsqadmin", nonce="n", subject="u")
    check_claims({**GOOD, "nonce": None}, expected, NOW, is_refresh=True)
    for changes in ({"nonce": "x"}, {"sub": "u2"}):
        with pytest.raises(BadToken):
            check_claims({**GOOD, **changes}, expected, NOW, is_refresh=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (token(alg="none"), "its algorithm is 'none'"),
        (token(alg="None"), "its algorithm"),
        (token(alg="HS256"), "its algorithm is 'HS256'"),
        (token(alg="RSA-OAEP"), "its algorithm"),
        (token(alg=["RS256"]), "its algorithm"),
        (token(), "its algorithm"),
        (token(alg="RS256", kid=1), "key id"),
        (token(alg="RS256", crit=["b64"], b64=False), "critical"),
        (token(alg="RS256", typ="at+jwt"), "its type is 'at\\+jwt'"),
        (token(alg="RS256", typ=[]), "its type"),
        ("e30.e30", "three parts"),
        ("a.b.c.d.e", "three parts"),
        ("a" * 70_000 + ".b.c", "three parts"),
        (".e30.", "not JSON"),
        ("!.e30.", "not JSON"),
        (coded(b"[" * 20_000) + ".e30.", "not JSON"),
        ("W10.e30.", "not a JSON object"),
    ],
)
def test_headers_that_choose_their_own_rules_are_refused(text: str, reason: str) -> None:
    with pytest.raises(BadToken, match=reason):
        header_of(text)


def test_a_key_is_chosen_by_its_id_and_only_for_what_it_is_made_for() -> None:
    assert header_of(token(alg="RS256", kid="a", typ="JWT", jwk={}, jku="https://evil")) == Header("RS256", "a")
    a, b, plain = rsa(kid="a"), rsa(kid="b", alg="RS256", use="sig"), rsa()
    unfit = [
        rsa(1024, kid="a"),
        rsa(16384, kid="a"),
        rsa(kid="a", use="enc"),
        rsa(kid="a", alg="RS512"),
        rsa(kid="a", n=7),
        {"kty": "oct", "kid": "a", "k": "AAAA"},
        rsa(kid="a") | {"kty": "oct"},
        {"kty": "EC", "kid": "a", "crv": "P-256"},
        {"kid": "a"},
        "a",
        None,
    ]
    assert keys_for(Header("RS256", "a"), [*unfit, a, b, plain]) == [a]
    assert keys_for(Header("RS256", ""), [*unfit, a, b, plain]) == [a, b, plain]
    assert keys_for(Header("RS256", "c"), [a, b, plain]) == []
    curves = [{"kty": "EC", "crv": curve} for curve in ("P-256", "P-384", "P-521", "secp256k1")]
    assert [keys_for(Header(alg, ""), curves) for alg in ("ES256", "ES384", "ES512")] == [[it] for it in curves[:3]]


def test_an_access_token_belongs_to_its_id_token() -> None:
    # The example of OpenID Connect Core, A.3.
    given = {"at_hash": "77QmUPtjPfzWtF2AnpK9RQ"}
    check_access_token(given, Header("RS256", ""), "jHkWEdUXMU1BwAsC4vtUsZwnNvTIxEl0z9K3vx5KF0Y")
    check_access_token({}, Header("RS256", ""), "anything")
    for wrong in (given, {"at_hash": 7}, {"at_hash": "é"}):
        with pytest.raises(BadToken):
            check_access_token(wrong, Header("RS256", ""), "another")
