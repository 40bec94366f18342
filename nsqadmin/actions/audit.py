"""What has happened and who has done what: the newest in memory, actions also in a file, one line of JSON each."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from common.startup import StartupError
from nsqadmin.cluster.recording import to_json

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Activity

log = logging.getLogger(__name__)

KEPT: Final = 2000


class ActivityLog:
    def __init__(self, audit_file: str = "") -> None:
        self._newest: deque[Activity] = deque(maxlen=KEPT)
        self._path = audit_file
        self._told: list[Callable[[Activity], None]] = []
        if audit_file:
            try:
                with open(audit_file, "a", encoding="utf-8"):
                    pass
            except OSError as error:
                raise StartupError(f"failed to open --audit-file ({audit_file}) - {error}") from error

    def newest(self) -> tuple[Activity, ...]:
        """The newest first."""
        return tuple(reversed(self._newest))

    def on_activity(self, told: Callable[[Activity], None]) -> None:
        self._told.append(told)

    def happened(self, activity: Activity) -> None:
        self._newest.append(activity)
        for told in self._told:
            told(activity)

    def done(self, activity: Activity) -> None:
        """Somebody did it, or was refused. It is in the file before the answer is on its way."""
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
        self.happened(activity)
        if self._path:
            line = json.dumps(to_json(activity), ensure_ascii=False) + "\n"
            try:
                with open(self._path, "a", encoding="utf-8") as file:
                    file.write(line)
            except OSError as error:
                log.error("AUDIT: cannot be written to %s - %s", self._path, error)
