"""Reads the user's name and groups out of the claims of an ID token or of the userinfo endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Claims = Mapping[str, Any]

EMAIL: Final = "email"
_LONGEST: Final = 256  # characters of a name
_MOST_GROUPS: Final = 2000


class BadClaims(ValueError):
    """The provider's claims are of no use. The message is for the user."""


def name_in(claims: Claims, path: str) -> str:
    """Return the user's name, or "" if there is no such claim. Raise BadClaims if we can't use it."""
    value = _value_at(claims, path)
    if value is None:
        return ""
    if not isinstance(value, str) or not _is_name(value):
        raise BadClaims(f"the claim {path} is not a name")
    # Anyone can enter someone else's address at a provider that doesn't verify it.
    if path == EMAIL and claims.get("email_verified", True) not in (True, "true"):
        raise BadClaims(f"the provider has not verified the email address {value}")
    return value


def groups_in(claims: Claims, path: str) -> tuple[str, ...] | None:
    """Return the user's groups, or None if there is no such claim. Values that aren't names are left out."""
    value = _value_at(claims, path)
    if value is None:
        return None
    values = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(it for it in values[:_MOST_GROUPS] if isinstance(it, str) and _is_name(it)))


def are_groups_elsewhere(claims: Claims, path: str) -> bool:
    """Return True if the provider left out the groups because there are too many, as Entra ID does above 200."""
    elsewhere = claims.get("_claim_names")
    return isinstance(elsewhere, dict) and path in elsewhere


def _value_at(claims: Claims, path: str) -> object:
    """Return the claim of this name, which may have dots in it, otherwise the one at the end of a path of names."""
    if path in claims:
        return claims[path]
    value: object = claims
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value


def _is_name(text: str) -> bool:
    return bool(text.strip()) and len(text) <= _LONGEST and text.isprintable()
