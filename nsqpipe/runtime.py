"""One command, from its checks to its last word: the session, the progress, and one line when it fails."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Final

import typer

from nsqpipe.failures import PipeFailed, first_cause
from nsqpipe.jobs import Decoding, OnSpark, Streaming
from nsqpipe.kinds import Format, Late
from nsqpipe.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from nsqpipe.landed import Ledger
    from nsqpipe.settings import Job
    from nsqpipe.tables import Table
    from nsqpipe.upkeep import Policy


INCOMPLETE: Final = 3  # the exit status when all is well but for nodes that did not answer


class Run:
    def __init__(self, job: Job, resources: ExitStack) -> None:
        self._job = job
        self._resources = resources
        self._is_checked = False
        is_shown = isinstance(job, OnSpark) and not job.quiet
        self.progress = resources.enter_context(Progress(sys.stderr)) if is_shown else None

    def check(self) -> None:
        """Raises where it can be known without Spark that the job cannot work. Without this call `session` does it."""
        self._is_checked = True
        if self.progress is not None:
            self.progress.stage("looking at nodes and tables", is_news=False)
        from nsqpipe.checks import check

        check(self._job)

    def session(self, name: str) -> SparkSession:
        """Starts Spark, when all that can be known without it is in order."""
        job = self._job
        assert isinstance(job, OnSpark)
        if not self._is_checked:
            self.check()
        if self.progress is not None:
            self.progress.stage("starting Spark")
        from nsqpipe.running import tasks_of
        from nsqpipe.session import open_session

        log = None if job.remote else self._log(job)
        spark = open_session(name, master=job.master, remote=job.remote, conf=dict(job.conf), log=log)
        if self.progress is not None:
            first = "first batch" if isinstance(job, Streaming) else name
            self.progress.stage(first, tasks_of(spark), is_news=isinstance(job, Streaming))
        return spark

    def _log(self, job: OnSpark) -> IO[bytes]:
        """What Spark logs. Nobody has to remove it, unless it was asked for: it has no name."""
        if job.log is None:
            return self._resources.enter_context(TemporaryFile(prefix="nsqpipe-"))
        try:
            return self._resources.enter_context(job.log.open("ab"))
        except OSError as error:
            raise PipeFailed(f"--log {job.log}: {error.strerror}") from None

    def queries(
        self,
        spark: SparkSession,
        start: Callable[[], Sequence[StreamingQuery]],
        ledger: Ledger,
        tables: Sequence[Table] = (),
        policy: Policy | None = None,
        *,
        late: Late = Late.COUNT,
    ) -> None:
        """Until they end. However that is, what has been done is said. Meanwhile the tables are looked after."""
        from nsqpipe.late import LateRows
        from nsqpipe.metrics import serving
        from nsqpipe.running import run_queries
        from nsqpipe.tending import tended

        job = self._job
        assert isinstance(job, Streaming)
        assert isinstance(job, OnSpark)
        here = () if job.remote else tables  # or they are the server's
        landed = next(
            (it for it in here if it.format is Format.DELTA and isinstance(job, Decoding) and job.can_fail), None
        )
        began = time.monotonic()
        with serving(spark, job.metrics_address, landed) as page:
            observers, upkeep_observers = [ledger.observe], [page.observe_upkeep]
            if self.progress is not None:
                observers.append(self.progress.observe)
                upkeep_observers.append(self.progress.observe_upkeep)
            try:
                with tended(here, policy, upkeep_observers):
                    run_queries(spark, start, observers=observers, late=LateRows(late))
            finally:
                if self.progress is not None:
                    self.progress.finish(ledger.told(time.monotonic() - began))
        if job.until_now and ledger.missing:
            typer.echo(f"nsqpipe: what these have is not in it: {'; '.join(ledger.missing.values())}", err=True)
            raise typer.Exit(INCOMPLETE)

    def told(self, text: str) -> None:
        """How far it is."""
        if self.progress is not None:
            self.progress.tell(text)


@contextmanager
def running(job: Job) -> Iterator[Run]:
    """What ends the job, whatever it is, is one line for whoever runs it; `--log` keeps the traceback."""
    failed: PipeFailed | None = None
    with ExitStack() as resources:
        try:
            yield Run(job, resources)
        except PipeFailed as error:
            failed = error
            _keep_traceback(job)
        except typer.Exit:
            raise
        except Exception as error:
            failed = PipeFailed(first_cause(error))
            _keep_traceback(job)
    if failed is not None:
        typer.echo(f"nsqpipe: {failed}", err=True)
        raise typer.Exit(failed.exit_status)


def _keep_traceback(job: Job) -> None:
    log = getattr(job, "log", None)
    if log is not None:
        with log.open("a") as file:
            traceback.print_exc(file=file)
