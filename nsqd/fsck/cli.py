"""The command `nsqd fsck`: its arguments, its output, and its exit status."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TextIO

from nsqd.fsck.examination import Examination
from nsqd.fsck.finding import Damage, DamageSeverity
from nsqd.fsck.identity import give_new_identity
from nsqd.log.data_path import DataPathError
from nsqd.log.files import Files, error_text
from nsqd.log.owner import owner_elsewhere

CLEAN: Final = 0
FOUND: Final = 1
NOT_EXAMINED: Final = 2

PROGRESS_INTERVAL: Final = 2.0

_ABOUT: Final = """\
Examines a stopped data path: every record of every topic with its checksums, the journal, indexes and small files,
and whether they fit together. Nothing is changed unless it is asked for. Findings go to standard output, one on a
line; progress and the sum to standard error.
"""

_STATUS: Final = """\
severities:
  unreadable the disk refuses to read something, which may be sound
  damage     something is not what was written, or is missing
  warning    something is not as it was written, but nothing is lost by it
  note       as it should be, or as a kill leaves it; the next start sees to it

exit status:
  0          clean (there may be notes)
  1          something is unreadable, or warnings or damage were found, also if they were repaired
  2          it could not be examined: no such data path, or a broker is running on it
"""


def main(
    argv: Sequence[str], *, files: Files | None = None, out: TextIO | None = None, err: TextIO | None = None
) -> int:
    asked = parser().parse_args(argv)
    out, err = out or sys.stdout, err or sys.stderr
    files = files or Files()
    folder = Path(asked.data_path)
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
            return _name_anew(files, folder, out, as_json=asked.json)
        return _examine(files, folder, out, err, as_json=asked.json, repair=asked.repair)
    except DataPathError as error:
        err.write(f"nsqd fsck: {error}\n")
    except OSError as error:
        err.write(f"nsqd fsck: {error_text('read', error.filename or folder, error)}\n")
    finally:
        files.close(lock)
    return NOT_EXAMINED


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="nsqd fsck", description=_ABOUT, epilog=_STATUS, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("data_path", metavar="DATA_PATH", help="the folder that --data-path of nsqd names")
    made.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    what = made.add_mutually_exclusive_group()
    what.add_argument(
        "--repair",
        action="store_true",
        help="mend what is safe to mend, and say so: cut torn tails (kept aside), build indexes anew, write lost small "
        "files anew, remove leftovers; what cannot be read is never removed",
    )
    what.add_argument(
        "--new-identity",
        action="store_true",
        help="give the node and each log a new id; needed for a restored backup or a copy, before it is served",
    )
    return made


def _new_id() -> str:
    return os.urandom(16).hex()


def _name_anew(files: Files, folder: Path, out: TextIO, *, as_json: bool) -> int:
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
    found: list[tuple[Damage, str | None]] = []
    for finding in examination.run():
        done = _mend(finding) if repair else None
        found.append((finding, done))
        if not as_json:
            out.write(finding.as_line() + (f" - {done}" if done else "") + "\n")
    counts = {severity: sum(finding.severity is severity for finding, _ in found) for severity in DamageSeverity}
    if as_json:
        report = {
            "data_path": str(folder),
            "node": examination.node,
            "topics": examination.topics,
            "bytes": progress.done,
            **{severity.value: count for severity, count in counts.items()},
            "findings": [finding.as_object(repaired=done) for finding, done in found],
        }
        out.write(json.dumps(report) + "\n")
    told = ", ".join(f"{severity}: {counts[severity]}" for severity in reversed(DamageSeverity))
    err.write(f"examined {examination.topics} topics, {progress.done} bytes; {told}\n")
    return FOUND if len(found) > counts[DamageSeverity.NOTE] else CLEAN


def _mend(finding: Damage) -> str | None:
    if finding.mend is None:
        return None
    try:
        return finding.mend() or None
    except OSError as error:
        return f"not repaired: {error_text('write', error.filename or finding.file, error)}"


class FsckProgress:
    """Reports progress every few seconds."""

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
