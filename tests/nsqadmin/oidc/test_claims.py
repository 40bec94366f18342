"""The user's name and groups in claims."""

from __future__ import annotations

from typing import Any

import pytest

from nsqadmin.oidc.claims import BadClaims, are_groups_elsewhere, groups_in, name_in


@pytest.mark.parametrize(
    ("claims", "path", "groups"),
    [
        ({"groups": ["a", "b", "a"]}, "groups", ("a", "b")),
        ({"groups": "a"}, "groups", ("a",)),
        ({"groups": []}, "groups", ()),
        ({}, "groups", None),
        ({"groups": None}, "groups", None),
        ({"realm_access": {"roles": ["a"]}}, "realm_access.roles", ("a",)),
        ({"resource_access": {"my.app": {"roles": ["a"]}}}, "resource_access.my.app.roles", None),
        ({"https://x.example/groups": ["a"]}, "https://x.example/groups", ("a",)),
        ({"realm_access": "roles"}, "realm_access.roles", None),
        ({"groups": ["a", 1, None, "", " ", "x" * 257, "a\nb", "a\u202eb"]}, "groups", ("a",)),
        ({"groups": {"a": 1}}, "groups", ()),
    ],
)
def test_groups_are_names_at_a_path(claims: dict[str, Any], path: str, groups: tuple[str, ...] | None) -> None:
    assert groups_in(claims, path) == groups


def test_there_is_a_limit_to_groups() -> None:
    assert len(groups_in({"groups": [str(number) for number in range(5000)]}, "groups") or ()) == 2000


def test_entra_says_that_there_are_too_many_groups() -> None:
    assert are_groups_elsewhere({"_claim_names": {"groups": "src1"}}, "groups")
    assert not are_groups_elsewhere({"_claim_names": "groups"}, "groups")


@pytest.mark.parametrize("verified", [{}, {"email_verified": True}, {"email_verified": "true"}])
def test_an_address_counts_unless_the_provider_says_that_it_is_not_verified(verified: dict[str, Any]) -> None:
    assert name_in({"email": "ana@example.com", **verified}, "email") == "ana@example.com"
    assert name_in({**verified}, "email") == ""


@pytest.mark.parametrize(
    "claims",
    [
        {"email": "ana@example.com", "email_verified": False},
        {"email": "ana@example.com", "email_verified": "false"},
        {"email": "ana@example.com", "email_verified": None},
        {"email": "ana\n"},
        {"email": ""},
        {"email": ["ana@example.com"]},
        {"email": "a" * 257},
    ],
)
def test_other_addresses_name_no_one(claims: dict[str, Any]) -> None:
    with pytest.raises(BadClaims):
        name_in(claims, "email")
