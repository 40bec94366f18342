"""Edit and run: replaces a message of one channel by an edited copy. docs/decisions/0042-edit-and-run.md

nsqd does it in one operation. Here are what we ask it, its answers in words, and the message to begin with.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from nsqadmin.actions.execution import may_follow
from nsqadmin.messages.lists import text_in, whole_in
from nsqadmin.messages.reading import ANOTHER_LOG, why
from nsqadmin.upstream.client import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqadmin.upstream.client import Upstream

_NO_ANSWER: Final = "it did not confirm in time. It may have run the copy: send it again, it runs only once"
_NONSENSE: Final = (KeyError, TypeError, ValueError, RecursionError)
_OF_A_JOB: Final = "job-eta"  # header: when the old message was due, which the copy isn't
_WORDS: Final[Mapping[str, str]] = {
    "NOT_FOUND": "it cannot edit messages: it is a Go nsqd or an older version",
    "MESSAGE_NOT_FOUND": "its log no longer has the message",
    "ANOTHER_LOG": ANOTHER_LOG,
    "MSG_TOO_BIG": "the message is larger than its --max-msg-size",
    "MSG_EMPTY": "the message is empty",
    "INVALID_DEFER": "it does not defer for that long: see its --max-defer-timeout",
    "INVALID_HEADERS": "with the headers of an edit, the message has more headers than nsqd allows",
    "OTHER_CHANNEL": "it is an edited copy for another channel",
    "EPHEMERAL_TOPIC": "messages of an ephemeral topic cannot be edited",
    "EPHEMERAL_CHANNEL": "messages of an ephemeral channel cannot be edited",
    "FULL": "the channel has no room for another message",
    "ALREADY_DONE": "this edit ran before, and the log no longer has the copy",
    "CANNOT_READ": "it cannot read the message from its disk now",
}
_PLACES: Final[Mapping[str, str]] = {
    "in_flight": "a consumer has it. Wait until it answers, or until the message times out",
    "finished": "it is finished meanwhile",
    "replaced": "an edited copy has replaced it already",
    "not_released": "the topic is paused, so no channel has it yet",
}
REPEATABLE: Final = frozenset(("finished", "replaced"))  # places of a message of which one can run a copy in addition


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedMessage:
    """The message to replace, and the body to run instead."""

    topic: str
    channel: str
    node: str
    sequence: int
    log: str = ""  # id of the log that has the sequence; empty: unknown
    body: bytes = field(repr=False)
    token: str = ""  # the same for each repeat of a request, which then runs once
    is_again: bool = False  # run the copy also if the message is finished or replaced
    delay_ms: int = 0

    @property
    def target(self) -> str:
        """The address of the request on the node."""
        asked: dict[str, object] = {
            "topic": self.topic,
            "channel": self.channel,
            "sequence": self.sequence,
            "without": _OF_A_JOB,
        }
        more: dict[str, object] = {
            "log": self.log,
            "token": self.token,
            "again": "true" if self.is_again else "",
            "defer": self.delay_ms,
        }
        return f"/channel/edit?{urlencode(asked | {name: it for name, it in more.items() if it})}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EditReceipt:
    """The result of an edit."""

    node: str
    sequence: int  # of the copy
    id: str
    old_id: str
    is_instead: bool  # the copy has replaced the message; otherwise it runs in addition
    is_repeat: bool  # an earlier request had the same token: the copy is that one's


class CannotRun(Exception):
    """The node has refused, or hasn't confirmed; the message says why, for the user."""

    def __init__(self, code: str, reason: str, *, place: str = "") -> None:
        """`place` is where the message is, if that's the reason."""
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.place = place


class Editor:
    """Edits, on trio."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def run(self, wanted: EditedMessage) -> EditReceipt:
        """Replace the message by its edited copy. Raise CannotRun."""
        try:
            return receipt_in(
                wanted.node, json.loads(await self._upstream.post(wanted.node, wanted.target, wanted.body))
            )
        except UpstreamError as error:
            refusal = _refusal(error)
            if refusal.code == "INVALID_TOKEN" and wanted.token and not wanted.is_again:
                # A repeat is harmless without a token, too: it finds that the message has been replaced.
                return await self.run(replace(wanted, token=""))  # nosec B106
            raise refusal from error
        except _NONSENSE as error:
            raise CannotRun("BAD_ANSWER", f"its answer cannot be read: {error!r:.200}") from error


def receipt_in(node: str, raw: Any) -> EditReceipt:
    """Parse a node's answer. Raise KeyError, TypeError."""
    return EditReceipt(
        node=node,
        sequence=whole_in(raw["sequence"]),
        id=text_in(raw["id"]),
        old_id=text_in(raw["copy_of"]["id"]),
        is_instead=raw["replaced"] is True,
        is_repeat=raw["repeated"] is True,
    )


def _refusal(error: UpstreamError) -> CannotRun:
    said = _said_in(error)
    code, place = str(said.get("message", "")), str(said.get("place", ""))
    if may_follow(error) and code != "CANNOT_READ":
        return CannotRun("NO_ANSWER", _NO_ANSWER)
    if code == "CANNOT_EDIT":
        reason = _PLACES.get(place) or str(said.get("reason", ""))[:200]
        if place == "in_flight" and (holder := said.get("hostname") or said.get("client_id")):
            reason = reason.replace("a consumer has it", f"the consumer on {str(holder)[:100]} has it")
        return CannotRun(code, reason, place=place)
    if code == "INVALID_TOKEN":
        return CannotRun(code, "it does not recognize repeated requests: see its --idempotence-window")
    return CannotRun(code or "FAILED", why(error, _WORDS))


def _said_in(error: UpstreamError) -> dict[str, Any]:
    try:
        said = json.loads(error.body)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
