"""The buried messages of one channel on one nsqd, over HTTP (docs/reference/http.md, "Buried messages")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from nsqtools.json_fields import list_in, number_in, text_in

if TYPE_CHECKING:
    from nsqtools.nodes import NodeQueries, Server

REASONS: Final = {
    "NOT_FOUND": "this nsqd can't bury messages",
    "JOB_UNDER_WAY": "a kick or discard is already running",
    "FULL": "the channel has no room for them: --limit fewer, wait until consumers have made room, or use --force",
}
NO_CHANNEL: Final = frozenset({"TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"})


@dataclass(frozen=True, slots=True)
class JobProgress:
    """A kick or discard that nsqd executes on its own."""

    verb: str
    done: int
    started_at: int
    has_ended: bool


@dataclass(frozen=True, slots=True)
class BuriedTotals:
    count: int
    reasons: tuple[tuple[str, str, int], ...]  # reason, client, number of messages
    others: int  # messages with other reasons
    job: JobProgress | None
    paused_why: str
    room: int | None  # messages that a kick can give back without force; None: any number

    def most_with(self, reason: str) -> int:
        """Return the maximum number of messages with a reason that contains this text."""
        return self.others + sum(count for found, _, count in self.reasons if reason in found)


class DeadLetters:
    """One channel of one nsqd. All methods raise AskFailed."""

    def __init__(self, queries: NodeQueries, server: Server, topic: str, channel: str) -> None:
        self._queries = queries
        self.server = server
        self._channel = urlencode({"topic": topic, "channel": channel})

    async def summary(self) -> BuriedTotals:
        return await self._queries.ask(self.server, f"/channel/buried?{self._channel}&summary=true", _summary)

    async def page(self, *, after: int | None, limit: int, reason: str) -> list[dict[str, Any]]:
        """Return the next messages after a sequence. Fewer than `limit` mean the end."""
        arguments = urlencode({"limit": limit, "reason": reason} | ({} if after is None else {"after": after}))
        target = f"/channel/buried?{self._channel}&{arguments}"
        return await self._queries.ask_lines(self.server, target, lambda line: number_in(line, "sequence"))

    async def take(
        self, verb: str, selection: Mapping[str, str], ids: tuple[str, ...]
    ) -> tuple[int, JobProgress | None]:
        """Kick or discard. Return how many messages are done so far, and the job that does the rest."""
        arguments = urlencode([*selection.items(), *(("id", it) for it in ids)])
        return await self._queries.post(self.server, f"/channel/{verb}?{self._channel}&{arguments}", _taken)

    async def jobs(self) -> list[JobProgress]:
        return await self._queries.ask(self.server, f"/channel/jobs?{self._channel}", _jobs)

    async def stop_job(self) -> JobProgress | None:
        """Stop the running job, and return it."""
        target = f"/channel/jobs/stop?{self._channel}"
        return await self._queries.post(self.server, target, lambda said: _job(said["job"]))


def _summary(said: Any) -> BuriedTotals:
    reasons = tuple(
        (text_in(it, "reason"), text_in(it, "client"), number_in(it, "count")) for it in list_in(said, "reasons")
    )
    return BuriedTotals(
        count=number_in(said, "count"),
        reasons=reasons,
        others=number_in(said, "others"),
        job=_job(said["job"]),
        paused_why=text_in(said, "paused_why"),
        room=None if said.get("room") is None else number_in(said, "room"),
    )


def _job(said: Any) -> JobProgress | None:
    if said is None:
        return None
    return JobProgress(
        text_in(said, "verb"), number_in(said, "done"), number_in(said, "started_at"), said["ended_at"] is not None
    )


def _jobs(said: Any) -> list[JobProgress]:
    return [job for it in list_in(said, "jobs") if (job := _job(it)) is not None]


def _taken(said: Any) -> tuple[int, JobProgress | None]:
    return number_in(said, "kicked" if "kicked" in said else "discarded"), _job(said["job"])
