"""Parses the rights file, and decides what the holder of a token or client certificate may do:

    [[allow]]
    name = "billing"                       # for people
    token_sha256 = "9f86d081884c7d65..."   # of the token; a leaked file does not reveal the token
    common_name = "billing.example"        # of a certificate signed by a CA in --tls-root-ca-file
    roles = ["publish", "read"]
    topics = ["orders", "invoices.*"]      # * is any text. Without this line: all topics, and the whole node

`nsqd.auth.rights_file` reads the file.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from nsqcommon.name_patterns import expression_of, is_pattern, matcher
from nsqd.auth.grants import PUBLISH, SUBSCRIBE, Grant, GrantEntry


class Role(StrEnum):
    PUBLISH = "publish"
    READ = "read"  # see metrics, settings and messages; also consume
    CONSUME = "consume"  # take messages from a channel
    OPERATE = "operate"  # actions that lose no messages, and options that may change at run time
    ADMIN = "admin"  # everything


class RightsError(ValueError):
    """The text is not a valid rights file."""


GRANT_TTL: Final = 60  # seconds; after that, a TCP client's rights are looked up again
_KEYS: Final = {"name", "token_sha256", "common_name", "roles", "topics"}
_is_digest: Final = re.compile(r"[0-9a-f]{64}").fullmatch


@dataclass(frozen=True, slots=True)
class RightsHolder:
    """One entry of the rights file: a token, a certificate or both, and the holder's rights."""

    name: str
    digest: bytes  # SHA-256 of the token; empty: no token
    common_name: str
    roles: frozenset[Role]
    topics: tuple[str, ...]  # empty: all topics
    _reach: tuple[Callable[[str], object], ...] = field(init=False, repr=False, compare=False)  # matchers of `topics`

    def __post_init__(self) -> None:
        object.__setattr__(self, "_reach", tuple(map(matcher, self.topics)))

    def has(self, role: Role) -> bool:
        return role in self.roles or Role.ADMIN in self.roles

    def may(self, role: Role, topic: str | None) -> bool:
        """Return whether the holder has the role for this topic.

        If `topic` is None, the request doesn't concern exactly one topic, so only holders of all topics may make it.
        """
        return self.has(role) and self._reaches(topic)

    def _reaches(self, topic: str | None) -> bool:
        if not self.topics:
            return True
        return topic is not None and any(reaches(topic) for reaches in self._reach)

    @property
    def grant(self) -> Grant:
        """These rights as a grant for AUTH over TCP. The roles `read` and `consume` both allow SUB."""
        roles_for = {PUBLISH: (Role.PUBLISH,), SUBSCRIBE: (Role.READ, Role.CONSUME)}
        permissions = [permission for permission, roles in roles_for.items() if any(map(self.has, roles))]
        topics = [f"^(?:{expression_of(topic)})$" for topic in self.topics] or [""]
        entries = [GrantEntry.of(topic, [""], permissions) for topic in topics] if permissions else []
        return Grant(ttl=GRANT_TTL, identity=self.name, identity_url="", entries=entries)


class Rights:
    def __init__(self, holders: list[RightsHolder]) -> None:
        self.holders = holders

    def holder(self, token: bytes, common_name: str) -> RightsHolder | None:
        """Return the holder of the token or, without a token, of the certificate. Returns None if it is unknown.

        If there is a token, we ignore the certificate, because the client chose to send the token. An unknown token
        is refused even if the certificate is known.
        """
        found = None
        if token:
            digest = hashlib.sha256(token).digest()
            for holder in self.holders:  # no early exit, so that timing reveals nothing
                if hmac.compare_digest(holder.digest, digest):
                    found = holder
        elif common_name:
            found = next((it for it in self.holders if it.common_name == common_name), None)
        return found


def parse_rights(text: str) -> Rights:
    """Parse the text of a rights file. Raises RightsError.

    Unknown keys are refused, because ignoring a misspelt `topics`, for example, would give the holder all topics.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: syntax, or a number too long; RecursionError: nesting
        raise RightsError(str(error)) from error
    entries = document.pop("allow", [])
    if document or not isinstance(entries, list):
        raise RightsError("expected only [[allow]] tables")
    holders = [_holder(number, entry) for number, entry in enumerate(entries, 1)]
    for what in ("name", "digest", "common_name"):
        known = [value for holder in holders if (value := getattr(holder, what))]
        if len(known) != len(set(known)):
            raise RightsError(f"two entries have the same {'token' if what == 'digest' else what}")
    return Rights(holders)


def _holder(number: int, entry: Any) -> RightsHolder:
    where = f"entry {number}"
    if not isinstance(entry, dict):
        raise RightsError(f"{where}: expected a table")
    if unknown := sorted(entry.keys() - _KEYS):
        raise RightsError(f"{where}: unknown key {unknown[0]}")
    name, digest, common_name = (_text(where, entry, key) for key in ("name", "token_sha256", "common_name"))
    if not name:
        raise RightsError(f"{where}: name is missing")
    if digest and not _is_digest(digest.lower()):
        raise RightsError(f"{where}: token_sha256 must be 64 hexadecimal digits")
    if not digest and not common_name:
        raise RightsError(f"{where}: expected token_sha256, common_name, or both")
    roles, topics = _texts(where, entry, "roles"), _texts(where, entry, "topics")
    for role in roles:
        if role not in list(Role):
            raise RightsError(f"{where}: unknown role {role}")
    for topic in topics:
        if not is_pattern(topic):
            raise RightsError(f"{where}: {topic!r} is neither a topic name nor a pattern")
    if "topics" in entry and not topics:
        raise RightsError(f"{where}: topics is empty; leave it out to allow all topics")
    return RightsHolder(name, bytes.fromhex(digest), common_name, frozenset(map(Role, roles)), tuple(topics))


def _text(where: str, entry: dict[str, Any], key: str) -> str:
    value = entry.get(key, "")
    if not isinstance(value, str):
        raise RightsError(f"{where}: {key} must be a string")
    return value


def _texts(where: str, entry: dict[str, Any], key: str) -> list[str]:
    value = entry.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RightsError(f"{where}: {key} must be a list of strings")
    return value
