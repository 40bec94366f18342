"""Runs retries of the failed jobs of a task, and keeps the last ones. They end with nsqadmin; the other jobs stay buried."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from math import inf
from time import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import trio

from nsqadmin.access import Right
from nsqadmin.actions.execution import may_follow
from nsqadmin.jobs.retry import FailedReading, Retry, RetryWanted, failed_in
from nsqadmin.messages.buried import BURIED, kick_in
from nsqadmin.messages.buried_actions import VERBS, Verb
from nsqadmin.messages.filters import by_header
from nsqadmin.messages.lists import Look, parse_places, whole_in
from nsqadmin.messages.reading import code_of, why
from nsqadmin.messages.selection_reading import SelectionReader
from nsqadmin.upstream.acting import acting_for
from nsqadmin.upstream.client import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqadmin.access import Identity
    from nsqadmin.actions.audit import ActivityLog
    from nsqadmin.cluster.model import Channel
    from nsqadmin.cluster.view import View
    from nsqadmin.http.responses import Caller
    from nsqadmin.jobs.retry import FailedJob
    from nsqadmin.messages.reading import Reader
    from nsqadmin.upstream.client import Upstream

log = logging.getLogger(__name__)

NAME: Final = "retry_task"  # of the action, in addresses and in the audit log
STOP: Final = "stop_retry"
MOST_READ: Final = 10_000  # buried messages, for a plan
MOST_RUNNING: Final = 10
_KEPT: Final = 20  # retries that have ended
_SECONDS: Final = 4.0  # to read for a plan
_ON_A_PAGE: Final = 500  # jobs
_FRESH: Final = 5.0  # seconds for which a reading serves the same user's plans, who types a rate meanwhile
_FULL_PAUSE: Final = 1.0  # seconds until a channel without room is tried again
_NO_ANSWER: Final = "it did not confirm in time: it may have retried some of the jobs, or still do it"
_NONSENSE: Final = (KeyError, TypeError, ValueError, RecursionError)


class CannotRetry(Exception):
    """The request is refused; the message says why, for the user."""

    def __init__(self, status: int, reason: str) -> None:
        """`status` is HTTP's."""
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Read:
    """A reading for one user."""

    of: tuple[str, str, str, str]
    reading: FailedReading
    at: float


class Retries:
    """All retries, on trio."""

    def __init__(
        self,
        upstream: Upstream,
        reader: Reader,
        view: View,
        activity: ActivityLog,
        *,
        wall: Callable[[], float] = time,
    ) -> None:
        """`wall` returns seconds since 1970."""
        self._upstream = upstream
        self._buried = SelectionReader(BURIED, upstream, reader)
        self._view = view
        self._activity = activity
        self._wall = wall
        self._known: list[Retry] = []
        self._stops: dict[str, trio.Event] = {}
        self._ends: dict[str, trio.Event] = {}
        self._read: _Read | None = None
        self._to_run, self._started = trio.open_memory_channel[tuple[Retry, FailedReading, "Caller"]](MOST_RUNNING)

    async def run(self) -> None:
        """Run the retries until cancelled."""
        async with trio.open_nursery() as nursery:
            async for retry, reading, caller in self._started:
                nursery.start_soon(self._carry_out, retry, reading, caller)

    def begun(self, token: str, caller: Caller) -> Retry | None:
        """Return the retry that this user's form has begun before; None: it hasn't."""
        return next((it for it in self._known if token and (it.token, it.who) == (token, caller.name)), None)

    def of(self, topic: str, channel: str, task: str) -> list[Retry]:
        """Return the known retries of a task in a queue, the newest first."""
        return [
            it
            for it in reversed(self._known)
            if (it.wanted.topic, it.wanted.channel, it.wanted.task) == (topic, channel, task)
        ]

    # Reading

    async def reading(self, channel: Channel, task: str, identity: Identity) -> FailedReading:
        """Read the buried jobs of a task. The caller has checked the right to see messages."""
        of = identity.user, channel.topic, channel.name, task
        if (read := self._read) is not None and read.of == of and trio.current_time() - read.at < _FRESH:
            return read.reading
        summary = await self._buried.summary(self._view.snapshot, channel)
        found = FailedReading(
            total=summary.count,
            missing={it.node: it.error for it in summary.missing},
            silent=frozenset(it.node for it in summary.missing),
        )
        deadline = trio.current_time() + _SECONDS
        async with aclosing(self._pages(channel, task, identity, "", deadline)) as pages:
            async for page in pages:
                found = replace(
                    found,
                    jobs=found.jobs + page.jobs,
                    looked=found.looked + page.looked,
                    after=page.after,
                    missing={**found.missing, **page.missing},
                )
                if found.looked >= MOST_READ:
                    break
        self._read = _Read(of, found, trio.current_time())
        return found

    async def _pages(
        self, channel: Channel, task: str, identity: Identity, after: str, deadline: float = inf
    ) -> AsyncGenerator[FailedReading, None]:
        """Yield page after page of the list, from a place on."""
        summary = await self._buried.summary(self._view.snapshot, channel)
        while True:
            look = Look(
                after=parse_places(after),
                limit=_ON_A_PAGE,
                wanted=by_header("job-name", task),
                seconds=max(0.2, min(_SECONDS, deadline - trio.current_time())),
                with_bodies=False,
            )
            page = await self._buried.page(channel, summary, identity, look)
            yield FailedReading(
                jobs=failed_in(page.lines), looked=page.looked, after=page.after, missing=dict(page.missing)
            )
            if not page.after or not page.looked or trio.current_time() >= deadline:
                return
            after = page.after

    # Acting

    async def begin(self, wanted: RetryWanted, reading: FailedReading, caller: Caller, token: str = "") -> Retry:
        """Begin a retry. Raise CannotRetry without the rights, if one runs for this task, or if too many run.

        A form has a `token`. If it is sent twice, as by a double click or after a lost answer, this returns the retry
        of the first time.
        """
        for right in (Right.PAYLOAD, VERBS[Verb.KICK].right):
            if reason := caller.identity.why_not(right, wanted.topic):
                raise CannotRetry(403, reason)
        if (begun := self.begun(token, caller)) is not None:
            return begun
        if any(it.is_running for it in self.of(wanted.topic, wanted.channel, wanted.task)):
            raise CannotRetry(409, "A retry of this task is running: stop it first.")
        if len(self._ends) >= MOST_RUNNING:
            raise CannotRetry(503, f"{MOST_RUNNING} retries are running: stop one, or wait until one ends.")
        total = reading.count(wanted.reason)
        if wanted.limit and (total.value is None or total.value > wanted.limit):
            total = replace(total, value=wanted.limit)
        retry = Retry(secrets.token_hex(8), wanted, total, who=caller.name, started_at=self._wall(), token=token)
        retry.unread.update(reading.missing)
        self._known.append(retry)
        for ended in [it for it in self._known if not it.is_running][:-_KEPT]:
            self._known.remove(ended)
        self._stops[retry.id], self._ends[retry.id] = trio.Event(), trio.Event()
        self._read = None  # the next plan must not count these
        self._to_run.send_nowait((retry, reading, caller))
        return retry

    async def wait(self, retry: Retry, seconds: float) -> None:
        """Wait until it has ended, but not longer than this."""
        if (end := self._ends.get(retry.id)) is not None:
            with trio.move_on_after(seconds):
                await end.wait()

    async def wait_or_note(self, retry: Retry, seconds: float, caller: Caller) -> None:
        """Wait until it has ended. After `seconds`, note its beginning in the audit log instead.

        Otherwise nobody would know of it if nsqadmin was killed, because its end is noted only then.
        """
        await self.wait(retry, seconds)
        if not retry.is_running or retry.is_noted:
            return
        retry.is_noted = True
        wanted = retry.wanted
        text = f"began to retry the failed jobs of one task of {wanted.topic}/{wanted.channel}"
        text += f" at {wanted.rate:g} a second" if wanted.rate else ""
        self._activity.note(caller, NAME, text, "ok", topic=wanted.topic, channel=wanted.channel, at=retry.started_at)

    async def stop(self, topic: str, id: str, who: str) -> Retry:
        """Stop a retry. Raise CannotRetry if it isn't known. `who` is in the audit log."""
        retry = next((it for it in self._known if it.id == id and it.wanted.topic == topic), None)
        if retry is None:
            raise CannotRetry(404, "This retry is no longer known.")
        if (stop := self._stops.get(id)) is not None:
            retry.stopped_by = retry.stopped_by or who
            stop.set()
        return retry

    async def _carry_out(self, retry: Retry, reading: FailedReading, caller: Caller) -> None:
        wanted = retry.wanted
        try:
            with self._activity.under_way(wanted.topic), acting_for(caller.name):
                async with aclosing(self._jobs(retry, reading, caller.identity)) as steps:
                    async for step in steps:
                        if not await self._step(retry, step):
                            break
        except Exception:  # our bug: it ends this retry, and not nsqadmin
            log.exception("retry failed topic=%s channel=%s", wanted.topic, wanted.channel)
            retry.errors[""] = "nsqadmin has failed: see its log"
        finally:
            retry.ended_at = self._wall()
            self._stops.pop(retry.id)
            self._ends.pop(retry.id).set()
            self._note(retry, caller)

    async def _jobs(
        self, retry: Retry, reading: FailedReading, identity: Identity
    ) -> AsyncGenerator[Sequence[FailedJob], None]:
        """Yield the jobs to retry, some at a time: those of the plan, and then the others of the list."""
        wanted = retry.wanted
        for step in _steps(reading.with_reason(wanted.reason), retry.step):
            yield step
        channel = self._view.snapshot.channel(wanted.topic, wanted.channel)
        if not reading.after or channel is None:
            return
        retry.unread.clear()  # these lists are read further now, and those of nodes that were silent from their start
        async with aclosing(self._pages(channel, wanted.task, identity, reading.after)) as pages:
            async for page in pages:
                for node, problem in page.missing.items():
                    retry.unread.setdefault(node, problem)
                for step in _steps(page.with_reason(wanted.reason), retry.step):
                    yield step

    async def _step(self, retry: Retry, jobs: Sequence[FailedJob]) -> bool:
        """Kick some jobs when it is time. Return False if that was the last step."""
        stop, by_node = self._stops[retry.id], dict[str, list[str]]()
        for it in jobs[: int(min(retry.left, len(jobs)))]:
            if it.node not in retry.errors:
                by_node.setdefault(it.node, []).append(it.id)
        with trio.move_on_at(retry.due(sum(map(len, by_node.values())), trio.current_time())):
            await stop.wait()
        for node, ids in by_node.items():
            left: Sequence[str] = ids
            while not stop.is_set() and (left := await self._kick(retry, node, left)):
                retry.waits_for_room = True
                with trio.move_on_after(_FULL_PAUSE):
                    await stop.wait()
        retry.waits_for_room = False
        return not stop.is_set() and retry.left > 0

    async def _kick(self, retry: Retry, node: str, ids: Sequence[str]) -> Sequence[str]:
        """Ask a node to kick these. Return those for which the channel has no room, so it has to be asked again."""
        wanted = retry.wanted
        asked = [("topic", wanted.topic), ("channel", wanted.channel), *(("id", id) for id in ids)]
        if number := retry.kick_of(node):
            asked.append(("kick", str(number)))
        try:
            told = json.loads(await self._upstream.post(node, f"/channel/kick?{urlencode(asked)}"))
            retry.kicked(node, len(ids), whole_in(told["kicked"]), kick_in(told))
        except UpstreamError as error:
            if code_of(error) == "FULL":
                fits = _fits_in(error)  # a channel may never have room for a whole step
                left = await self._kick(retry, node, ids[:fits]) if 0 < fits < len(ids) else ids[:fits]
                return [*left, *ids[fits:]]
            follows = may_follow(error)
            retry.failed(node, len(ids), _NO_ANSWER if follows else why(error, VERBS[Verb.KICK].words))
        except _NONSENSE as error:
            retry.failed(node, len(ids), f"its answer cannot be read: {error!r:.200}")
        return ()

    def _note(self, retry: Retry, caller: Caller) -> None:
        """Write to the audit log, which users without `payload` read: so it doesn't name the task or its error."""
        wanted = retry.wanted
        text = f"retried {retry.done:,} failed jobs of one task of {wanted.topic}/{wanted.channel}"
        text += f" at {wanted.rate:g} a second" if wanted.rate else ""
        if retry.is_stopped:
            text += ", then stopped" + (f" by {retry.stopped_by}" if retry.stopped_by != retry.who else "")
        failed = ", ".join(sorted(filter(None, retry.errors)))
        text += f"; no answer or refused: {failed}" if failed else ""
        unread = ", ".join(sorted(retry.unread)) if retry.left else ""
        text += f"; not read to the end: {unread}" if unread else ""
        self._activity.note(
            caller,
            NAME,
            text,
            retry.result,
            topic=wanted.topic,
            channel=wanted.channel,
            nodes=tuple(sorted({it.partition("@")[2] for it in retry.kicks})),
            at=retry.started_at,
            took=(retry.ended_at or retry.started_at) - retry.started_at,
        )


def _fits_in(error: UpstreamError) -> int:
    """Return how many messages the channel has room for; 0: none, or the node didn't say."""
    try:
        return whole_in(json.loads(error.body)["fits"])
    except _NONSENSE:
        return 0


def _steps(jobs: Sequence[FailedJob], size: int) -> list[Sequence[FailedJob]]:
    return [jobs[at : at + size] for at in range(0, len(jobs), size)]
