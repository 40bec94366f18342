"""The command `nsqd fsck`: its arguments, its output, and its exit status."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TextIO

from nsqcommon.options import option
from nsqcommon.startup import StartupError
from nsqcommon.subcommands import Command, argument, parsed_by, run_command
from nsqd.fsck.examination import Examination
from nsqd.fsck.finding import FsckFinding, FsckSeverity
from nsqd.fsck.identity import give_new_identity
from nsqd.log.data_path import DataPathError
from nsqd.log.files import Files, error_text
from nsqd.log.owner import owner_elsewhere

CLEAN: Final = 0
FOUND: Final = 1
NOT_EXAMINED: Final = 2

PROGRESS_INTERVAL: Final = 2.0

_ABOUT: Final = """\
Checks the data path of a stopped nsqd: the checksums of all records, the journal, indexes and small files, and
whether they are consistent. Changes nothing unless you ask for it. Findings go to standard output, one per line;
progress and a summary go to standard error.
"""

_STATUS: Final = """\
severities:
  unreadable the disk refuses to read something; the data may be intact
  damage     something is missing, or is not what nsqd wrote
  warning    something is not what nsqd wrote, but no data is lost
  note       normal, or normal after a kill; the next start deals with it

exit status:
  0          clean, apart from notes
  1          there were unreadable files, damage or warnings, even if they are repaired now
  2          not checked: there is no such data path, or nsqd is running on it
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckOptions:
    data_path: Path = argument("the --data-path of nsqd", kind=parsed_by(Path, "PATH"))
    json: bool = option(False, "print one JSON object instead of lines")
    repair: bool = option(
        False,
        "make the safe repairs and report each: cut torn tails (a copy is kept), rebuild indexes, rewrite lost "
        "small files, remove leftovers; unreadable data is never removed",
    )
    new_identity: bool = option(
        False, "give the node and each log a new id; use it on a copy or a restored backup before you start nsqd"
    )

    def __post_init__(self) -> None:
        if self.repair and self.new_identity:
            raise StartupError("--new-identity: not allowed with --repair")


def main(
    argv: Sequence[str],
    *,
    files: Files | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    run = partial(_fsck, files=files or Files(), out=out or sys.stdout, err=err or sys.stderr)
    return run_command(Command(table=FsckOptions, run=run, about=_ABOUT, closing=_STATUS), argv, "nsqd fsck")


def _fsck(asked: FsckOptions, *, files: Files, out: TextIO, err: TextIO) -> int:
    folder = asked.data_path
    try:
        lock = files.lock_folder(folder)
    except BlockingIOError:
        err.write(f"nsqd fsck: a broker is running on {folder}: stop it first\n")
        return NOT_EXAMINED
    except OSError as error:
        err.write(f"nsqd fsck: {error_text('open', folder, error)}\n")
        return NOT_EXAMINED
    try:
        if (owner := owner_elsewhere(files, folder)) is not None:
            err.write(f"nsqd fsck: {folder} is in use by {owner}: stop it first\n")
            return NOT_EXAMINED
        if asked.new_identity:
            return _give_new_identity(files, folder, out, as_json=asked.json)
        return _examine(files, folder, out, err, as_json=asked.json, repair=asked.repair)
    except DataPathError as error:
        err.write(f"nsqd fsck: {error}\n")
    except OSError as error:
        err.write(f"nsqd fsck: {error_text('read', error.filename or folder, error)}\n")
    finally:
        files.close(lock)
    return NOT_EXAMINED


def _new_id() -> str:
    return os.urandom(16).hex()


def _give_new_identity(files: Files, folder: Path, out: TextIO, *, as_json: bool) -> int:
    node, logs = give_new_identity(files, folder, new_id=_new_id)
    if as_json:
        out.write(json.dumps({"data_path": str(folder), "node": node, "logs": logs}) + "\n")
    else:
        out.write(f"node: {node}\n")
        out.writelines(f"log: {log_id} topic={topic}\n" for topic, log_id in logs.items())
    return CLEAN


def _examine(files: Files, folder: Path, out: TextIO, err: TextIO, *, as_json: bool, repair: bool) -> int:
    progress = FsckProgress(err, time.monotonic)
    examination = Examination(files, folder, new_id=_new_id, progress=progress.add)
    progress.total = examination.total_bytes()
    found: list[tuple[FsckFinding, str | None]] = []
    for finding in examination.run():
        repaired = _repair(finding) if repair else None
        found.append((finding, repaired))
        if not as_json:
            out.write(finding.as_line() + (f" - {repaired}" if repaired else "") + "\n")
    counts = {severity: sum(finding.severity is severity for finding, _ in found) for severity in FsckSeverity}
    if as_json:
        report = {
            "data_path": str(folder),
            "node": examination.node,
            "topics": examination.topics,
            "bytes": progress.done,
            **{severity.value: count for severity, count in counts.items()},
            "findings": [finding.as_object(repaired=repaired) for finding, repaired in found],
        }
        out.write(json.dumps(report) + "\n")
    totals = ", ".join(f"{severity}: {counts[severity]}" for severity in reversed(FsckSeverity))
    err.write(f"examined {examination.topics} topics, {progress.done} bytes; {totals}\n")
    return FOUND if len(found) > counts[FsckSeverity.NOTE] else CLEAN


def _repair(finding: FsckFinding) -> str | None:
    if finding.repair is None:
        return None
    try:
        return finding.repair() or None
    except OSError as error:
        return f"not repaired: {error_text('write', error.filename or finding.file, error)}"


class FsckProgress:
    """Prints the progress, at most every two seconds."""

    def __init__(self, err: TextIO, clock: Callable[[], float]) -> None:
        self.total = 0
        self.done = 0
        self._err = err
        self._clock = clock
        self._next = clock() + PROGRESS_INTERVAL

    def add(self, size: int) -> None:
        self.done += size
        if self._clock() >= self._next:
            self._next = self._clock() + PROGRESS_INTERVAL
            share = 100 * self.done // max(self.total, 1)
            self._err.write(f"{self.done >> 20} of {self.total >> 20} MiB ({share}%)\n")
            self._err.flush()
