"""Runs one command, from its checks to its last line: its session, its progress, and one line if it fails."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final

import typer

from nsqpipe.jobs import OfStreams, OnSpark
from nsqpipe.progress import Progress
from pyspark_nsq.failures import PipeFailed, first_cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsqpipe.settings import Job
    from nsqpipe.streams import Streams
    from pyspark_nsq.idle import Look
    from pyspark_nsq.reports import Report

INCOMPLETE: Final = 3  # exit status if nothing failed, but not everything was read
STOPPED: Final = "nsqpipe: stopped before everything was read: the next run goes on"


class Run:
    def __init__(self, job: Job, resources: ExitStack) -> None:
        self._job = job
        self._resources = resources
        self._is_checked = False
        is_shown = isinstance(job, OnSpark) and not job.quiet
        self.progress = resources.enter_context(Progress(sys.stderr)) if is_shown else None

    def check(self) -> None:
        """Raise PipeFailed if we can tell without Spark that the job can't work.

        `session` calls this unless it was called before.
        """
        self._is_checked = True
        if self.progress is not None:
            self.progress.stage("checking nodes and tables", is_news=False)
        from nsqpipe.checks import check

        check(self._job)

    def session(self, name: str) -> SparkSession:
        """Start Spark, after the checks."""
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
            first = "first batch" if isinstance(job, OfStreams) else name
            self.progress.stage(first, tasks_of(spark), is_news=isinstance(job, OfStreams))
        return spark

    def _log(self, job: OnSpark) -> IO[bytes]:
        """Open the file for Spark's log: that of --log, or a temporary one without a name."""
        if job.log is None:
            return self._resources.enter_context(TemporaryFile(prefix="nsqpipe-"))
        try:
            return self._resources.enter_context(job.log.open("ab"))
        except OSError as error:
            raise PipeFailed(f"--log {job.log}: {error.strerror}") from None

    def queries(self, spark: SparkSession, jobs: Sequence[Streams], *, goes_on: bool = False) -> None:
        """Run the queries of these jobs until they end, and tend their tables meanwhile. Then print the results.

        With `goes_on`, the other jobs continue when one of them fails.
        """
        from nsqpipe.late import LateRows
        from nsqpipe.metrics import serving
        from nsqpipe.running import Group, run_groups
        from pyspark_nsq.tables.tending import tended

        job = self._job
        assert isinstance(job, OfStreams)
        assert isinstance(job, OnSpark)
        groups = [Group(start=partial(it.start, spark), late=LateRows(it.late), prefix=it.prefix) for it in jobs]
        observers: list[Callable[[str, dict[str, Any]], None]] = [it.observe for it in jobs]
        landed = {query: table for it in jobs for query, table in it.landed.items()}
        look = _look_at(jobs)
        began = time.monotonic()
        with serving(spark, job.metrics_address, landed, look=look) as page:
            upkeep_observers = [page.observe_upkeep]
            if self.progress is not None:
                observers.append(self.progress.observe)
                upkeep_observers.append(self.progress.observe_upkeep)
            try:
                with ExitStack() as upkeep:
                    for it in () if job.remote else jobs:  # with Spark Connect, the tables are on the server
                        upkeep.enter_context(tended(it.tables, it.policy, upkeep_observers))
                    have_ended = run_groups(
                        spark, groups, observers=observers, goes_on=goes_on, on_failure=self._failed, look=look
                    )
            finally:
                if self.progress is not None:
                    seconds = time.monotonic() - began
                    self.progress.finish("\n".join(it.ledger.summary(seconds) for it in jobs))
        missing = {node: why for it in jobs for node, why in it.ledger.missing.items()}
        if job.until_now:
            _check_complete(have_ended, missing)

    def _failed(self, prefix: str, failure: PipeFailed) -> None:
        if self.progress is not None:
            self.progress.give_up(prefix)
            self.progress.note(f"{failure}; the others go on")

    def show(self, text: str) -> None:
        """Show the job's progress."""
        if self.progress is not None:
            self.progress.tell(text)


@contextmanager
def running(job: Job) -> Iterator[Run]:
    """Print any error that ends the job in one line, and exit with its status. `--log` keeps the traceback."""
    failed: PipeFailed | None = None
    with ExitStack() as resources:
        try:
            yield Run(job, resources)
        except PipeFailed as error:
            failed = error
            _keep_traceback(job)
        except typer.Exit:
            raise
        except KeyboardInterrupt:  # before there was a query to stop
            if isinstance(job, OfStreams) and job.until_now:
                typer.echo(STOPPED, err=True)
                raise typer.Exit(INCOMPLETE) from None
            raise
        except Exception as error:
            failed = PipeFailed(first_cause(error))
            _keep_traceback(job)
    if failed is not None:
        for line in str(failed).splitlines():
            typer.echo(f"nsqpipe: {line}", err=True)
        raise typer.Exit(failed.exit_status)


def _look_at(jobs: Sequence[Streams]) -> Look:
    """Return a look at idle queries that uses the source of each query's job."""
    from pyspark_nsq.idle import ClusterLook

    looks = {it.prefix: ClusterLook(it.source) for it in jobs if it.source}

    def look(query: str, last: Report | None) -> Report | None:
        its = next((it for prefix, it in looks.items() if query.startswith(prefix)), None)
        return its(query, last) if its is not None else None

    return look


def _check_complete(have_ended: bool, missing: Mapping[str, str]) -> None:
    """Exit with a special status if not everything was read, so that a scheduler doesn't take the run for complete."""
    if not have_ended:
        typer.echo(STOPPED, err=True)
    if missing:
        typer.echo(f"nsqpipe: messages on these nodes were not read: {'; '.join(missing.values())}", err=True)
    if missing or not have_ended:
        raise typer.Exit(INCOMPLETE)


def _keep_traceback(job: Job) -> None:
    log = getattr(job, "log", None)
    if log is not None:
        with log.open("a") as file:
            traceback.print_exc(file=file)
