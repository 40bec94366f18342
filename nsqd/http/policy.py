"""`GET /config/policy`: shows the state of the policy file, and the rules in force for a topic or channel.

Each rule is shown with the line of the policy file that it comes from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqcommon.http_api import HttpError, Request, Response, json
from nsqcommon.wire.names import is_valid_name

if TYPE_CHECKING:
    from nsqd.policy.policies import EffectiveKey
    from nsqd.policy.policy_file import PolicyFile


class PolicyEndpoints:
    def __init__(self, file: PolicyFile | None) -> None:
        self._file = file

    async def show(self, request: Request) -> Response:
        query = request.query()
        topic, channel = query.get("topic", ""), query.get("channel", "")
        if (topic and not is_valid_name(topic)) or (channel and not topic):
            raise HttpError(400, "INVALID_TOPIC")
        if channel and not is_valid_name(channel):
            raise HttpError(400, "INVALID_CHANNEL")
        return json(_policy_members(self._file, topic, channel))


def _policy_members(file: PolicyFile | None, topic: str, channel: str) -> dict[str, object]:
    if file is None:
        answer: dict[str, object] = {"path": "", "digest": "", "read_at": 0, "error": "", "topics_left": 0}
    else:
        content = file.content
        answer = {
            "path": file.path,
            "digest": content.digest,
            "read_at": content.read_at,
            "error": file.error,
            "topics_left": file.topics_left,
        }
        if content.is_copy:
            answer["is_copy"] = True
    if topic:
        answer["topic"] = _keys_in_force(file, topic, None)
    if channel:
        answer["channel"] = _keys_in_force(file, topic, channel)
    return answer


def _keys_in_force(file: PolicyFile | None, topic: str, channel: str | None) -> dict[str, object]:
    keys: dict[str, EffectiveKey] = file.content.policies.explain(topic, channel) if file is not None else {}
    return {key: {"value": it.value, "line": it.line, "dry_run": it.is_dry} for key, it in keys.items()}
