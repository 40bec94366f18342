"""A middleware that reports a worker's runs, and has failed jobs buried.

Retries and its like decide when a run ends. They mark the message as failed, or send it again with the same id. A broker
without them acknowledges a job that raised; we mark it as failed, so that it is buried, too.
"""

from __future__ import annotations

from threading import local
from time import time
from typing import TYPE_CHECKING, Any, Final

import dramatiq

from nsqcommon.job_reports import one_line
from nsqjobs.reporting import Reporter, Run

if TYPE_CHECKING:
    from dramatiq.broker import MessageProxy

    from nsqjobs.held import HeldMessage

LIBRARY: Final = "dramatiq"


class Reports(dramatiq.Middleware):
    """Goes before all other middleware, so that it learns of the end of a run after them."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._current = local()  # the run of this thread, and whether its job was sent again

    def close(self) -> None:
        self._reporter.close()

    def sent(self, message: dramatiq.Message[Any]) -> None:
        """Record that this thread has sent a message."""
        run: Run | None = getattr(self._current, "run", None)
        if run is not None and run.id == message.message_id:
            self._current.was_sent_again = True

    def not_sent(self) -> None:
        """Record that this thread could not send a message: then its job is redelivered."""
        self._current.comes_back = True

    def before_process_message(self, broker: dramatiq.Broker, message: MessageProxy) -> None:
        held: HeldMessage = message.held
        run = Run(
            library=LIBRARY,
            name=message.actor_name,
            id=message.message_id,
            topic=held.topic,
            started_at=time(),
            message=held.id,
            attempts=held.attempts,
            retries=int(message.options.get("retries") or 0),
        )
        self._current.run, self._current.was_sent_again, self._current.comes_back = run, False, False
        self._reporter.start(run)

    def after_process_message(
        self,
        broker: dramatiq.Broker,
        message: MessageProxy,
        *,
        result: Any = None,
        exception: BaseException | None = None,
    ) -> None:
        run, self._current.run = getattr(self._current, "run", None), None
        if run is None:
            return
        if self._current.comes_back:
            self._reporter.retrying(run, exception or "what follows it could not be sent", outcome="requeued")
        elif exception is None:
            self._reporter.succeeded(run)
        elif self._current.was_sent_again:
            self._reporter.retrying(run, exception, outcome="sent again")
        else:
            message.fail()
            self._reporter.failed(run, exception, outcome="buried")

    def after_skip_message(self, broker: dramatiq.Broker, message: MessageProxy) -> None:
        run, self._current.run = getattr(self._current, "run", None), None
        if run is None:
            return
        if message.failed:
            self._reporter.failed(run, _reason(message), outcome="buried")
        else:
            self._reporter.succeeded(run, outcome="skipped")


def _reason(message: MessageProxy) -> str:
    error = getattr(message, "_exception", None)
    return one_line(error) if isinstance(error, BaseException) else "failed"
