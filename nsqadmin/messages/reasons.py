"""Burial reasons, as users without the right `payload` may see them.

A reason is mostly the text of an exception, which quotes the message: `no such card 4929...`. So the expressions of
--mask apply to it like to a body, and without any it is hidden. nsqd's own words, such as `5 attempts, the last one
timed out`, quote nothing and are always shown.

If some users may not see a reason, it gets a name, `#` and twelve digits, for use in addresses, forms and API calls. So
these users can still kick by reason, and no address or log has the text. The name is a hash with a secret key: with a
plain hash, you could find a card's number by trying all of them. The key lives as long as the process, so the names
change when nsqadmin restarts.
"""

from __future__ import annotations

import re
import secrets
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from nsqadmin.access import Right
from nsqadmin.messages.lists import BadRequest
from nsqadmin.messages.masking import MASK
from nsqadmin.messages.policy_words import is_of_nsqd
from nsqadmin.messages.reason_groups import parts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqadmin.access import Identity
    from nsqadmin.messages.masking import Masking

_is_name: Final = re.compile(r"#[0-9a-f]{12}").fullmatch


class Reasons:
    def __init__(self, masking: Masking, *, all_see_payload: bool) -> None:
        """`all_see_payload`: every user has the right `payload`, so no reason has to be hidden."""
        self._masking = masking
        self._all_see_payload = all_see_payload
        self._key = secrets.token_bytes(16)

    def sight(self, identity: Identity, topic: str) -> ReasonSight:
        return ReasonSight(self, is_whole=identity.may(Right.PAYLOAD, topic))

    def masked(self, reason: str) -> str:
        """Return the text for a user who may not see the whole reason."""
        if not reason or is_of_nsqd(reason):
            return reason
        masked = self._masking.masked_text(reason)
        return MASK if masked is None else masked

    def public(self, reason: str) -> str:
        """Return the text for everyone who sees the topic, for the activity log."""
        return reason if self._all_see_payload else self.masked(reason)

    def public_part(self, text: str, listed: Sequence[str]) -> str:
        """Return a text that selects reasons, for everyone who sees the topic.

        A part of a reason can lack the text by which a mask finds what it hides, so it is hidden if a whole reason is.
        """
        if not text or self._all_see_payload or all(self.public(it) == it for it in listed if text in it):
            return self.public(text)
        return self.masked(text) if text in listed else MASK

    def name(self, reason: str) -> str:
        """Return the name of the reason in addresses: the reason itself, if everyone may see it."""
        return reason if self.public(reason) == reason else self.hidden_name(reason)

    def hidden_name(self, reason: str) -> str:
        return "#" + blake2b(reason.encode("utf-8", "surrogatepass"), digest_size=6, key=self._key).hexdigest()


class ReasonSight:
    """One user's view of the reasons in a topic."""

    def __init__(self, reasons: Reasons, *, is_whole: bool) -> None:
        self.is_whole = is_whole  # the user may search reasons for any text
        self._reasons = reasons

    def shown(self, reason: str) -> str:
        return reason if self.is_whole else self._reasons.masked(reason)

    def shown_part(self, text: str) -> str:
        """Return a text that selects reasons: perhaps a part, which lacks the text by which a mask finds what it hides."""
        return text if self.is_whole or not text or is_of_nsqd(text) else MASK

    def name(self, reason: str) -> str:
        return self._reasons.name(reason)

    def name_of_part(self, part: str, listed: Sequence[str]) -> str:
        """Return the name, in addresses, of a text that selects several of the listed reasons."""
        return part if self._reasons.public_part(part, listed) == part else self._reasons.hidden_name(part)

    def meant(self, asked: str, listed: Sequence[str]) -> str:
        """Return the text for `asked`, which may be the name of a listed reason, or of a group's text. Raise BadRequest.

        A user who doesn't see whole reasons can only name a listed one: with any text, the number of matches would
        reveal hidden parts.
        """
        if not asked or (self.is_whole and not _is_name(asked)):
            return asked
        found = next((reason for reason in listed if self.name(reason) == asked), None)
        if found is not None:
            return found
        if self.is_whole:
            return next((part for part in parts_of(listed) if self._reasons.hidden_name(part) == asked), asked)
        raise BadRequest(
            "name one of the reasons that are listed: you do not have the right “payload”, with which any text can be "
            "searched for"
        )
