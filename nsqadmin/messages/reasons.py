"""The reasons of buried messages, as users without the right `payload` may see them.

A reason is mostly the text of an exception, which quotes the message: `no such card 4929...`. So the expressions of
--mask hold for it as for a body, and without any it is hidden. nsqd's own words, such as `5 attempts, the last one
timed out`, quote nothing and are always shown.

A reason that not everybody may see has a name, `#` and twelve digits, which stands for it in addresses, forms and API
calls. So such a user can still kick by reason, and no address or log has the text. The name is a hash with a key that
nobody else has: from a plain one, a card's number could be found by trying all of them. The key lives as long as the
process, so after a restart of nsqadmin the names are others.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from nsqadmin.access.policy import Right
from nsqadmin.messages.buried_actions import BadTaking
from nsqadmin.messages.masking import MASK
from nsqadmin.messages.policy_words import is_of_nsqd

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsqadmin.access.policy import Identity
    from nsqadmin.messages.buried import Burial, Job, NodeSummary, Summary
    from nsqadmin.messages.buried_actions import Taken
    from nsqadmin.messages.masking import Masking

_is_name: Final = re.compile(r"#[0-9a-f]{12}").fullmatch


class Reasons:
    def __init__(self, masking: Masking, *, all_see_payload: bool) -> None:
        """`all_see_payload`: every user has the right `payload`, so no reason has to be hidden from anybody."""
        self._masking = masking
        self._all_see_payload = all_see_payload
        self._key = secrets.token_bytes(16)

    def sees_whole(self, identity: Identity, topic: str) -> bool:
        return identity.may(Right.PAYLOAD, topic)

    def shown(self, reason: str, *, whole: bool) -> str:
        """Return what a user sees of the reason."""
        if whole or not reason or is_of_nsqd(reason):
            return reason
        masked = self._masking.masked_text(reason)
        return MASK if masked is None else masked

    def public(self, reason: str) -> str:
        """Return what everybody may see who sees the topic, for the log of activity."""
        return self.shown(reason, whole=self._all_see_payload)

    def name(self, reason: str) -> str:
        """Return what stands for the reason in addresses: the reason itself, if everybody may see it."""
        if self.public(reason) == reason:
            return reason
        return "#" + blake2b(reason.encode("utf-8", "surrogatepass"), digest_size=6, key=self._key).hexdigest()

    def is_listed(self, asked: str, *, whole: bool) -> bool:
        """Return whether `asked` has to be looked for among the reasons that the nodes list."""
        return bool(asked and (not whole or _is_name(asked)))

    def meant(self, asked: str, listed: Iterable[str], *, whole: bool) -> str:
        """Return the text that `asked` stands for, which may be the name of a listed reason. Raise BadTaking.

        A user who does not see reasons whole can only name a listed one: with any text, the number of messages that
        have it would tell what is hidden.
        """
        if not self.is_listed(asked, whole=whole):
            return asked
        found = next((reason for reason in listed if self.name(reason) == asked), None)
        if found is not None:
            return found
        if whole:
            return asked
        raise BadTaking(
            "name one of the reasons that are listed: you do not have the right “payload”, with which any text can be "
            "searched for"
        )

    # Records with what the user may see

    def summary(self, summary: Summary, *, whole: bool) -> Summary:
        return replace(summary, nodes=tuple(self._node(it, whole) for it in summary.nodes))

    def burial(self, burial: Burial, *, whole: bool) -> Burial:
        return replace(burial, reason=self.shown(burial.reason, whole=whole))

    def taken(self, taken: Taken, *, whole: bool) -> Taken:
        return replace(taken, job=self._job(taken.job, whole))

    def _node(self, node: NodeSummary, whole: bool) -> NodeSummary:
        reasons = tuple(
            replace(it, reason=self.shown(it.reason, whole=whole), name=self.name(it.reason)) for it in node.reasons
        )
        return replace(node, reasons=reasons, job=self._job(node.job, whole), ended=self._job(node.ended, whole))

    def _job(self, job: Job | None, whole: bool) -> Job | None:
        return None if job is None else replace(job, reason=self.shown(job.reason, whole=whole))
