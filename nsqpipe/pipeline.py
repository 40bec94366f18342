"""The file of `nsqpipe run`: several jobs in one Spark session, each a section with its command's settings.

    [run]                      # settings of the session
    master = "local[4]"

    [defaults]                 # settings for all jobs that have them
    nsqd = "127.0.0.1:4151"

    [land.orders]              # a job of `nsqpipe land`, and its name
    topic = "orders"
    table = "/data/tables/orders"

This module does not list the settings again: names, types and defaults come from the dataclasses in `jobs.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from os.path import abspath
from typing import Any, Final, TypeVar

from nsqcommon.passwords import mask_passwords
from nsqpipe.configuration import STORAGE, by_key, key_of, read_tables, value_of
from nsqpipe.jobs import Aggregate, Land, OfStreams, OnSpark, Run
from nsqpipe.settings import Job, Setting, settings_of
from pyspark_nsq.failures import SeveralFailed, WrongUsage, first_cause, of_job

StreamJob = Land | Aggregate
T = TypeVar("T")

KINDS: Final[Mapping[str, type[StreamJob]]] = {"land": Land, "aggregate": Aggregate}
RUN: Final = "run"
DEFAULTS: Final = "defaults"
_KNOWN: Final = (RUN, DEFAULTS, STORAGE, *KINDS)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_LOCAL: Final = "local[*]"
# Settings of a job's command that its section doesn't have: settings of the session, and those that would print between
# the lines of other jobs.
_OF_THE_SESSION: Final = frozenset(it.name for kind in (OnSpark, OfStreams) for it in fields(kind))
_ALONE: Final = frozenset({"show"})
_ONLY_SAID: Final = frozenset({"file", "dry_run"})  # settings of `run` that are only options, not in its file


@dataclass(frozen=True, slots=True)
class Pipeline:
    run: Run
    jobs: Mapping[str, StreamJob]  # by the job's name

    def section(self, name: str) -> str:
        return section(self.jobs[name], name)


def section(job: StreamJob, name: str) -> str:
    kind = next(word for word, kind in KINDS.items() if isinstance(job, kind))
    return f"[{kind}.{name}]"


def read_pipeline(asked: Run) -> Pipeline:
    """Read the file. Raises WrongUsage, or SeveralFailed with a line for each mistake."""
    try:
        found = read_tables(asked.file)
    except (OSError, ValueError) as error:
        raise WrongUsage(f"{asked.file}: {first_cause(error) if isinstance(error, OSError) else error}") from None
    reader = _Reader(found)
    pipeline = reader.pipeline(asked)
    if reader.wrong:
        raise SeveralFailed([WrongUsage(f"{asked.file}: {text}") for text in reader.wrong])
    return pipeline


@dataclass
class _Reader:
    """Reads the file. It continues after mistakes, so that we can report all of them at once."""

    found: Mapping[str, Any]
    wrong: list[str] = field(default_factory=list)

    def pipeline(self, asked: Run) -> Pipeline:
        for name, table in self.found.items():
            if name not in _KNOWN:
                self._say(f"[{name}] is unknown: there are {', '.join(f'[{it}]' for it in _KNOWN)}")
            elif not isinstance(table, dict):
                self._say(f"{name} is a value, but should be a table")
        run = self._run(asked)
        jobs = dict(self._jobs(run))
        if not jobs and not self.wrong:
            self._say("there is no job: name one in [land.NAME] or [aggregate.NAME]")
        self.wrong.extend(_shared(jobs))
        return Pipeline(run, jobs)

    def _say(self, text: str) -> None:
        self.wrong.append(text)

    def _table(self, name: str) -> dict[str, Any]:
        table = self.found.get(name, {})
        return table if isinstance(table, dict) else {}

    def _run(self, asked: Run) -> Run:
        known = by_key(it for it in settings_of(Run) if it.name not in _ONLY_SAID)
        said = self._values(f"[{RUN}]", self._table(RUN), known)
        for it in known.values():
            if given := getattr(asked, it.name):
                # If a name occurs twice, the last one wins.
                said[it.name] = (*said.get(it.name, ()), *given) if it.repeats else given
        run = replace(asked, **said)
        return replace(run, master=run.master or _LOCAL)

    def _jobs(self, run: Run) -> Iterator[tuple[str, StreamJob]]:
        defaults = self._defaults()
        session = {name: getattr(run, name) for name in ("master", "remote", "conf", "until_now")}
        taken: dict[str, str] = {}
        for word, kind in KINDS.items():
            for name, table in self._table(word).items():
                where = f"[{word}.{name}]"
                if not isinstance(table, dict):
                    self._say(f"[{word}] {name} is a value: a job is a table with a name of its own, [{word}.NAME]")
                elif not _NAME.fullmatch(name):
                    self._say(f"{where} is not a name: use letters, digits, _ and -")
                elif name in taken:
                    self._say(f"{where} has the name of {taken[name]}")
                else:
                    taken[name] = where
                    job = self._job(where, kind, table, {**defaults[kind], **session})
                    if job is not None:
                        yield name, job

    def _defaults(self) -> dict[type[StreamJob], dict[str, Any]]:
        """Return the part of [defaults] for each kind of job.

        A setting that two kinds have means the same in both.
        """
        known = {kind: _settings_of_a_section(kind) for kind in KINDS.values()}
        everything = {key: it for settings in known.values() for key, it in settings.items()}
        said = self._values(f"[{DEFAULTS}]", self._table(DEFAULTS), everything)
        if stored := self._table(STORAGE):
            said = self._values("", {STORAGE: stored}, everything) | said
        return {
            kind: {it.name: said[it.name] for it in settings.values() if it.name in said}
            for kind, settings in known.items()
        }

    def _job(
        self, where: str, kind: type[StreamJob], table: Mapping[str, Any], defaults: Mapping[str, Any]
    ) -> StreamJob | None:
        before = len(self.wrong)
        known = _settings_of_a_section(kind)
        values = {**defaults, **self._values(where, table, known)}
        missing = [it.key for it in known.values() if it.is_required and it.name not in values]
        if len(self.wrong) == before and missing:
            self._say(f"{where} needs {', '.join(missing)}")
        if len(self.wrong) > before:
            return None
        job = kind(**values)
        self.wrong.extend(f"{where} {problem}" for problem in job.problems())
        return job

    def _values(self, where: str, table: Mapping[str, Any], known: Mapping[str, Setting]) -> dict[str, Any]:
        """Return the values of a table, by field. Its keys are names of options, with - or _."""
        values: dict[str, Any] = {}
        for spelled, given in table.items():
            it = known.get(key_of(spelled))
            if it is None:
                self._say(_unknown(where, spelled, known))
                continue
            try:
                values[it.name] = value_of(it, given)
            except ValueError as error:
                self._say(f"{where} {spelled}: {error}".lstrip())
        return values


def _settings_of_a_section(kind: type[Job]) -> dict[str, Setting]:
    return by_key(it for it in settings_of(kind) if it.name not in _OF_THE_SESSION | _ALONE)


def _unknown(where: str, spelled: str, known: Mapping[str, Setting]) -> str:
    if key_of(spelled) in {it.key for it in settings_of(Run) if it.name not in _ONLY_SAID}:
        return f"{where} {spelled} is for all jobs: it belongs in [{RUN}]"
    near = get_close_matches(key_of(spelled), known, n=1)
    return f"{where} has no setting {spelled}{f'; did you mean {near[0]}?' if near else ''}"


# Places


def _shared(jobs: Mapping[str, StreamJob]) -> Iterator[str]:
    """Yield a complaint for each place that two jobs write to."""
    owners: dict[str, str] = {}
    for name, job in jobs.items():
        here = section(job, name)
        for path in dict.fromkeys(_written_by(job)):
            if path in owners:
                yield f"{here} writes to {path}, and so does {owners[path]}: name a place of its own"
            owners.setdefault(path, here)


def _written_by(job: StreamJob) -> Iterator[str]:
    """Yield the absolute names of the places that a job writes to, without passwords."""
    if isinstance(job, Aggregate):
        yield from map(_absolute, filter(None, (job.checkpoint, job.table, job.results)))
        return
    yield _absolute(job.checkpoint or f"{job.table.rstrip('/')}.checkpoint")
    if job.is_iceberg:
        from nsqpipe.job_tables import tables_of  # imports Spark

        table, quarantine = (mask_passwords(it.absolute()) for it in tables_of(job))
    else:
        table, quarantine = _absolute(job.table), _absolute(job.quarantine_path)
    yield from (table, quarantine) if job.can_fail else (table,)


def _absolute(path: str) -> str:
    path = path.removeprefix("file://") if path.startswith("file:///") else path
    if "://" in path:
        return re.sub(r"^s3a://", "s3://", path).rstrip("/")
    return abspath(path)


# Work for each job


def for_each(pipeline: Pipeline, work: Callable[[str, StreamJob], T]) -> dict[str, T]:
    """Do this work for all jobs at the same time. Raises SeveralFailed, with a line for each job that fails."""
    with ThreadPoolExecutor(min(len(pipeline.jobs), 16), "jobs") as pool:
        begun = {name: pool.submit(work, name, job) for name, job in pipeline.jobs.items()}
    done, failures = {}, []
    for name, future in begun.items():
        error = future.exception()
        if error is None:
            done[name] = future.result()
        else:
            failures.append(of_job(pipeline.section(name), error))
    if failures:
        raise SeveralFailed(failures)
    return done
