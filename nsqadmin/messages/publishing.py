"""Publishes messages written by a user, and replays ranges of history, over nsqd's HTTP API."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from struct import pack
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus

import trio

from nsqadmin.messages.model import NodeLog, Published, ReplayPlan, ReplayReceipt
from nsqadmin.messages.reading import ANOTHER_LOG, Unreadable, gap_in, message_in, next_in, of_log, why
from nsqadmin.upstream.client import UpstreamError
from nsqcommon.wire.names import is_valid_name

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Snapshot
    from nsqadmin.messages.reading import Reader
    from nsqadmin.upstream.client import Upstream

MOST: Final = 10_000  # messages in one request to publish
MOST_REPLAYED: Final = 100_000  # messages; for more, use a program that can resume where it stopped
_BATCH: Final = 200  # messages
_BATCH_BYTES: Final = 1 << 20
_WORDS: Final = {
    "MSG_TOO_BIG": "the message is larger than its --max-msg-size",
    "BODY_TOO_BIG": "the messages are larger than its --max-body-size",
    "MSG_EMPTY": "a message is empty",
    "INVALID_DEFER": "it does not defer for that long: see its --max-defer-timeout",
}
_TYPED_FROM: Final = 1000  # messages; to replay more, the user has to type the target's name


class CannotPublish(Exception):
    """The request makes no sense."""

    def __init__(self, code: str, reason: str) -> None:
        """`code` is a word for programs, `reason` a text for users."""
        super().__init__(code)
        self.code = code
        self.reason = reason


def node_to_publish_at(snapshot: Snapshot, topic: str, node: str) -> str:
    """Return `node`, if given; otherwise a healthy node, preferably one with the topic. Raise CannotPublish."""
    if not is_valid_name(topic):
        raise CannotPublish("INVALID_TOPIC", "a name has 1 to 64 of a-z A-Z 0-9 . _ -")
    if node:
        known = snapshot.node(node)
        if known is None:
            raise CannotPublish("NODE_NOT_FOUND", node)
        return node
    healthy = [
        each.address
        for each in snapshot.nodes
        if each.is_reachable and not each.draining and not each.is_standby and each.own_health in ("", "OK")
    ]
    if not healthy:
        raise CannotPublish("NO_NODE", "no node answers")
    found = snapshot.topic(topic)
    having = [row.node for row in found.nodes if row.node in healthy] if found is not None else []
    return (having or healthy)[0]


class Publisher:
    """Publishes and replays, on trio."""

    def __init__(self, upstream: Upstream, reader: Reader) -> None:
        self._upstream = upstream
        self._reader = reader

    async def publish(self, node: str, topic: str, bodies: Sequence[bytes], *, defer_ms: int = 0) -> Published:
        count = 0
        try:
            if defer_ms:
                for body in bodies:
                    await self._upstream.post(node, f"/pub?topic={quote_plus(topic)}&defer={defer_ms}", body)
                    count += 1
            else:
                for batch in _batches(bodies):
                    await self._publish_batch(node, topic, batch)
                    count += len(batch)
        except UpstreamError as error:
            return Published(node=node, count=count, error=why(error, _WORDS), original_error=str(error))
        return Published(node=node, count=count)

    async def _publish_batch(self, node: str, topic: str, bodies: Sequence[bytes]) -> None:
        packed = b"".join([pack(">I", len(bodies)), *(pack(">I", len(body)) + body for body in bodies)])
        await self._upstream.post(node, f"/mpub?topic={quote_plus(topic)}&binary=true", packed)

    def plan_replay(
        self, log: NodeLog, topic: str, first: int, end: int, target: str, *, expected: str = ""
    ) -> ReplayPlan:
        """Return the plan for replaying this range of `log`. Raise CannotPublish.

        `expected` is the id of the log from which the range was chosen, if known.
        """
        if not is_valid_name(target):
            raise CannotPublish("INVALID_TOPIC", "a name has 1 to 64 of a-z A-Z 0-9 . _ -")
        if log.reason:
            raise CannotPublish("NO_HISTORY", f"{log.node}: {log.reason}")
        if expected and log.log and log.log != expected:
            raise CannotPublish("ANOTHER_LOG", f"{log.node}: {ANOTHER_LOG}")
        first, end = max(first, log.first), min(end, log.next)
        if first >= end:
            raise CannotPublish("EMPTY_RANGE", f"{log.node} has [{log.first}, {log.next})")
        count = end - first
        if count > MOST_REPLAYED:
            raise CannotPublish("RANGE_TOO_BIG", f"{count:,} messages; at most {MOST_REPLAYED:,} at once")
        return ReplayPlan(
            topic=topic,
            node=log.node,
            first=first,
            end=end,
            target=target,
            count=count,
            title=f"Replay {count:,} message{'' if count == 1 else 's'} of {topic} to {target}",
            consequences=tuple(_consequences(topic, target, count)),
            must_type=target if count > _TYPED_FROM else "",
            log=log.log,
        )

    async def replay(self, plan: ReplayPlan) -> ReplayReceipt:
        """Publish the range batch by batch. After an error, the receipt says where to continue."""
        began = trio.current_time()
        published = skipped = 0
        at, error, original = plan.first, "", ""
        waiting: list[bytes] = []
        size = 0

        async def flush(up_to: int) -> None:
            nonlocal published, size, at, waiting
            if waiting:
                await self._publish_batch(plan.node, plan.target, waiting)
                published += len(waiting)
            waiting, size, at = [], 0, up_to

        more = f"&to={plan.end}{of_log(plan.log)}"
        try:
            async with aclosing(self._reader.lines(plan.node, plan.topic, str(plan.first), more)) as lines:
                async for line in lines:
                    if "gap" in line:
                        gap = gap_in(plan.node, line)
                        skipped += gap.end - gap.first
                    elif "next" in line:
                        await flush(next_in(line))
                    else:
                        message = message_in(plan.node, line)
                        if len(waiting) >= _BATCH or size + message.size > _BATCH_BYTES:
                            await flush(message.sequence or 0)
                        waiting.append(message.body or b"")
                        size += message.size
        except (UpstreamError, Unreadable) as failure:
            original = str(failure)
            error = why(failure, _WORDS) if isinstance(failure, UpstreamError) else original
        return ReplayReceipt(
            plan=plan,
            published=published,
            skipped=skipped,
            continue_at=at if at < plan.end else None,
            error=error,
            original_error=original,
            took=trio.current_time() - began,
        )


def _consequences(topic: str, target: str, count: int) -> list[str]:
    texts = [
        f"Every channel of {target} gets them after its waiting messages, as new messages with new ids and times.",
        "They are published without the delays that they had before.",
    ]
    if target == topic:
        texts.insert(0, f"All consumers of {topic} see these messages a second time.")
    return texts


def _batches(bodies: Sequence[bytes]) -> list[list[bytes]]:
    batches: list[list[bytes]] = []
    size = 0
    for body in bodies:
        if not batches or len(batches[-1]) >= _BATCH or size + len(body) > _BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(body)
        size += len(body)
    return batches
