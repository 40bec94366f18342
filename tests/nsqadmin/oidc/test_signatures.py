"""Signatures of ID tokens."""

from __future__ import annotations

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from nsqadmin.oidc.id_token import BadToken, Header
from nsqadmin.oidc.signatures import verified_claims


def test_the_claims_are_those_that_one_of_the_keys_has_signed() -> None:
    rsa, first, second = RSAKey.generate_key(2048), ECKey.generate_key("P-256"), ECKey.generate_key("P-256")
    public = [dict(key.as_dict(private=False)) for key in (first, second)]
    signed = jwt.encode({"alg": "ES256"}, {"sub": "u"}, second)
    assert verified_claims(signed, Header("ES256", ""), [{"kty": "EC", "crv": "P-256"}, *public]) == {"sub": "u"}
    head, body, signature = signed.split(".")
    for forged in (f"{head}.{body}.", f"{head}.{body[:-2]}AA.{signature}", f"{head}.{body}.{signature[:-4]}AAAA"):
        with pytest.raises(BadToken):
            verified_claims(forged, Header("ES256", ""), public)
    with pytest.raises(BadToken):
        verified_claims(signed, Header("ES256", ""), public[:1])
    for alg in ("RS256", "PS256"):
        signed = jwt.encode({"alg": alg}, {"sub": "u"}, rsa, algorithms=[alg])
        assert verified_claims(signed, Header(alg, ""), [dict(rsa.as_dict(private=False))]) == {"sub": "u"}


def test_a_header_can_not_name_another_algorithm_than_was_checked() -> None:
    key = ECKey.generate_key("P-256")
    signed = jwt.encode({"alg": "ES256"}, {}, key)
    with pytest.raises(BadToken):
        verified_claims(signed, Header("RS256", ""), [dict(key.as_dict(private=False))])
