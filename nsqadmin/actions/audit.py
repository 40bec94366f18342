"""The log of events and of users' actions: the newest in memory, actions also in a file of JSON lines."""

from __future__ import annotations

import json
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import time
from typing import TYPE_CHECKING, Final

from nsqadmin.cluster.model import Activity
from nsqadmin.cluster.recording import to_json
from nsqcommon.startup import StartupError

if TYPE_CHECKING:
    from nsqadmin.http.responses import Caller

log = logging.getLogger(__name__)

KEPT: Final = 2000


class ActivityLog:
    def __init__(self, audit_file: str = "") -> None:
        self._newest: deque[Activity] = deque(maxlen=KEPT)
        self._path = audit_file
        self._callbacks: list[Callable[[Activity], None]] = []
        self._under_way: Counter[str] = Counter()  # actions by topic
        if audit_file:
            try:
                with open(audit_file, "a", encoding="utf-8"):
                    pass
            except OSError as error:
                raise StartupError(f"failed to open --audit-file ({audit_file}) - {error}") from error

    def newest(self) -> tuple[Activity, ...]:
        """Return the kept entries, newest first."""
        return tuple(reversed(self._newest))

    @contextmanager
    def under_way(self, topic: str) -> Iterator[None]:
        """Mark the topic as being changed by an action inside the block, and record the action at the end."""
        self._under_way[topic] += 1
        try:
            yield
        finally:
            self._under_way[topic] -= 1
            self._under_way += Counter()  # drops topics with a count of 0

    def is_under_way(self, topic: str) -> bool:
        """Return True if an action is changing this topic now, so that the sampler may see its effects."""
        return topic in self._under_way

    def on_activity(self, callback: Callable[[Activity], None]) -> None:
        self._callbacks.append(callback)

    def add_event(self, activity: Activity) -> None:
        self._newest.append(activity)
        for callback in self._callbacks:
            callback(activity)

    def note(
        self,
        caller: Caller,
        what: str,
        text: str,
        result: str,
        *,
        topic: str = "",
        channel: str = "",
        nodes: tuple[str, ...] = (),
        at: float | None = None,
        took: float | None = None,
        undo: str = "",
        also: tuple[str, ...] = (),
    ) -> None:
        """Add an action or refusal of this user, by default now. Readers must see `topic` and all of `also`."""
        self.add_action(
            Activity(
                at=time() if at is None else at,
                what=what,
                text=text,
                user=caller.identity.user or caller.basic_user,
                remote=caller.remote,
                topic=topic,
                channel=channel,
                nodes=nodes,
                result=result,
                took=took,
                undo=undo,
                also=also,
            )
        )

    def add_action(self, activity: Activity) -> None:
        """Add an action or refusal. It is in the audit file before the user gets an answer."""
        log.info(
            'AUDIT: %s topic=%s channel=%s nodes=%s user="%s" remote=%s result=%s',
            activity.what,
            activity.topic,
            activity.channel,
            ",".join(activity.nodes),
            activity.user,
            activity.remote,
            activity.result,
        )
        self.add_event(activity)
        if self._path:
            line = json.dumps(to_json(activity), ensure_ascii=False) + "\n"
            try:
                with open(self._path, "a", encoding="utf-8") as file:
                    file.write(line)
            except OSError as error:
                log.error("AUDIT: cannot write to %s - %s", self._path, error)
