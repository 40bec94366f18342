"""Decides which small files of a landed table are worth joining, and which files are no longer needed.

`pyspark_nsq/tables/tending.py` carries out these decisions.

**Joining.** An hour that gets no new rows for a while is *closed*: its small files become as few as the target size
allows. An hour that still grows is kept in tiers, by rows: tier 0 has files of less than `fanout` rows, tier 1 of less
than `fanout²`, and so on. When a tier has `fanout` files, they and all smaller ones become one file, of a higher tier.
So an hour of n commits never has many more than `fanout * log(n)` files, and each row is rewritten only log(n) times,
where joining everything with everything each time would rewrite it n times.

Joining is one commit that removes the old names and adds the new one. It does not conflict with a commit that appends.
If two commits join the same files, the later one finds them gone, and does nothing.

**Leftovers.** A writer that is killed leaves files that no version names. Only time distinguishes them from the files
of a batch that is being written. So each file has a *lease*: a sink refuses to commit a file that was finished longer
ago than `LEASE`, and upkeep doesn't remove one before `ABANDONED_AFTER`, which is twice that. The difference allows for
clocks that disagree. Only files with names by our sink or deltalake are ever removed.

**Removals.** Older versions still need a file that was joined. Only the note of its removal in the table's log
distinguishes it from a leftover, and Delta drops such notes after `delta.deletedFileRetentionDuration`, by default a
week. So if versions are kept longer, upkeep first sets that property to the longer time. Notes of earlier removals may
be gone by then, so earlier files are left alone until no kept version can need them. For example, if versions are to be
kept for 30 days from today on, a file that was joined ten days ago has no note any more, though the version of twelve
days ago needs it. Files of that age aren't touched for about three weeks, until versions of that time are no longer
kept.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_nsq.tables.lease import ABANDONED_AFTER, LEASE

DAY: Final = 24 * 3600.0
_OURS: Final = re.compile(r"part-[0-9a-f-]+-[0-9a-f]{32}\.zstd\.parquet")
_JOINED: Final = re.compile(r"part-\d{5}-[0-9a-f-]{36}-c\d{3}\.\w+\.parquet")  # deltalake's names
_RETENTION: Final = "delta.deletedFileRetentionDuration"
_KNOWN_FROM: Final = "nsq.removalsKnownFrom"  # seconds since 1970
_UNITS: Final = {"millisecond": 0.001, "second": 1.0, "minute": 60.0, "hour": 3600.0, "day": DAY, "week": 7 * DAY}
_INTERVAL: Final = re.compile(rf"(?:interval\s+)?(\d+)\s+({'|'.join(_UNITS)})s?")
_FOREIGN_AFTER: Final = 7 * DAY  # Delta's own rule, because other writers don't know our lease

Partition = tuple[tuple[str, object], ...]  # columns and values


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules for tending a table. Times are in seconds."""

    target_bytes: int = 128 << 20  # of a file
    closed_after: float = 600.0  # without new rows, until a partition counts as closed
    fanout: int = 8  # see above
    every: float = 30.0  # between two looks at the table
    vacuum_after: float | None = 7 * DAY  # age of the versions whose files are kept; None: remove nothing
    vacuum_every: float = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file named by the table's newest version."""

    path: str  # within the table
    partition: Partition
    rows: int
    size: int
    added: float  # seconds since 1970


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file in the table's folder."""

    path: str  # within the table
    modified: float  # seconds since 1970


@dataclass(frozen=True, slots=True)
class Joining:
    """Files of a partition that will become one."""

    partition: Partition
    files: tuple[NamedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tended:
    """The result of one look at a table."""

    table: str
    files: int = 0  # number of files in the table afterwards
    joined: int = 0  # small files that are gone
    made: int = 0  # large files that replaced them
    removed: int = 0  # files that no version needs, or ever named
    failed: str = ""  # why it failed; empty on success

    def __str__(self) -> str:
        if self.failed:
            return f"upkeep of {self.table} failed, and will be tried again: {self.failed}"
        return (
            f"upkeep of {self.table}: {self.joined:,} files joined into {self.made:,}, {self.removed:,} removed, "
            f"{self.files:,} there"
        )


def joinings(files: Iterable[NamedFile], policy: Policy, now: float) -> list[Joining]:
    """Return which files to join now; see **Joining** above."""
    partitions: dict[Partition, list[NamedFile]] = defaultdict(list)
    for file in files:
        partitions[file.partition].append(file)
    found = []
    for partition, here in partitions.items():
        is_closed = now - max(file.added for file in here) >= policy.closed_after
        # A file of half the target size is left alone, or we would rewrite it again and again for a few more rows.
        small = [file for file in here if file.size < policy.target_bytes // 2]
        chosen = small if is_closed else _up_to_a_full_tier(small, policy)
        found += [Joining(partition, files) for files in _packed(chosen, policy)]
    return found


def _up_to_a_full_tier(files: list[NamedFile], policy: Policy) -> list[NamedFile]:
    counts = Counter(_tier(file, policy) for file in files)
    highest = max((tier for tier, count in counts.items() if count >= policy.fanout), default=-1)
    return [file for file in files if _tier(file, policy) <= highest]


def _packed(files: list[NamedFile], policy: Policy) -> list[tuple[NamedFile, ...]]:
    """Group files that are neighbours in time, as many as fit into one file. A single file isn't worth rewriting."""
    packs: list[list[NamedFile]] = []
    room = 0
    for file in sorted(files, key=lambda file: (file.added, file.path)):
        if not packs or file.size > room:
            packs.append([])
            room = policy.target_bytes
        packs[-1].append(file)
        room -= file.size
    return [tuple(pack) for pack in packs if len(pack) > 1]


def _tier(file: NamedFile, policy: Policy) -> int:
    return int(math.log(max(1, file.rows), policy.fanout) + 1e-9)


def leftovers(found: Iterable[FoundFile], named: Container[str], now: float, *, known_from: float = 0.0) -> list[str]:
    """Return the paths of files left behind by a crash.

    `named` has the names of all files that any version may still need. It must have been read after `found`, so that it
    has commits in between. Files older than `known_from` may be needed even if they aren't named.
    """
    return [
        file.path
        for file in found
        if file.modified >= known_from
        and now - file.modified >= _safe_age(file.path.rpartition("/")[2])
        and file.path.rpartition("/")[2] not in named
    ]


def _safe_age(name: str) -> float:
    if _OURS.fullmatch(name):
        return ABANDONED_AFTER
    return _FOREIGN_AFTER if _JOINED.fullmatch(name) else math.inf


def seconds_of(interval: str) -> float | None:
    """Parse a duration in the syntax of Delta's properties, like `interval 1 week`. None: it isn't one."""
    found = _INTERVAL.fullmatch(interval.strip().lower())
    return float(found[1]) * _UNITS[found[2]] if found else None


def known_removals(properties: Mapping[str, str], keep: float, now: float) -> dict[str, str]:
    """Return the properties that make a table keep notes of removals for `keep` seconds; none if it does."""
    kept = seconds_of(properties.get(_RETENTION, ""))
    kept = 7 * DAY if kept is None else kept
    if kept >= keep:
        return {}
    since = max(float(properties.get(_KNOWN_FROM, 0)), now - kept + LEASE)  # clocks may disagree by a lease
    return {_RETENTION: f"interval {math.ceil(keep / 3600)} hours", _KNOWN_FROM: str(int(since))}


def known_from(properties: Mapping[str, str], keep: float, now: float) -> float:
    """Return the time from which we know all removals relevant for versions of the last `keep` seconds; 0: always."""
    since = float(properties.get(_KNOWN_FROM, 0))
    return since if now - keep < since else 0.0
