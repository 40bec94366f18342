"""A result file, read back: the tables and the chart know nothing else, so they cannot say anything else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench.peers.loads import BACKLOG, CLIENT_TIMES, KILL, LATENCIES, LOST, RATES, Figure, part_of
from bench.peers.variants import LIMIT, OURS, PROMISES, Promise


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    label: str
    promise: Promise
    durability: str
    version: str
    client: str = ""  # the language of its own client, which measured it: it is not ranked with the others

    @property
    def is_ours(self) -> bool:
        return self.name.startswith(f"{OURS}-")

    @property
    def is_limit(self) -> bool:
        return self.name == LIMIT


@dataclass(frozen=True, slots=True)
class Measured:
    median: float
    values: Sequence[float]  # one for each round
    ratio: float | None  # to ours in pure Python with the same promise, the median of the ratios round by round
    note: str

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    def overlaps(self, other: Measured) -> bool:
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, slots=True)
class Ahead:
    """Who is ahead, and of the other side (ours, or the best of the others) by what factor."""

    peer: Peer
    other: Peer | None
    factor: float | None
    is_clear: bool  # the spreads of the two do not overlap


@dataclass(frozen=True, slots=True)
class Group:
    """Who and what stands in one table."""

    name: str
    words: str
    figures: Sequence[Figure]
    peers: Sequence[Peer]


_BY_PROMISE: Final = (*RATES, *LATENCIES, *KILL)


@dataclass(frozen=True, slots=True)
class Result:
    path: Path
    date: str
    command: str
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    versions: Mapping[str, Any]
    backlog: int
    peers: Sequence[Peer]
    figures: Mapping[tuple[str, str], Measured]
    missing: Sequence[Mapping[str, str]]

    @classmethod
    def read(cls, path: Path) -> Result:
        return cls.of(json.loads(path.read_text(encoding="utf-8")), path)

    @classmethod
    def of(cls, content: Mapping[str, Any], path: Path) -> Result:
        peers = [
            Peer(
                *(it["name"], it["label"], Promise(it["promise"]), it["durability"], it["version"]),
                client=it.get("client", ""),
            )
            for it in content["peers"]
        ]
        return cls(
            path,
            content["date"][:10],
            content["command"],
            content["settings"],
            content["machine"],
            content["versions"],
            content["backlog"],
            peers,
            {(row["load"], row["peer"]): _measured(row) for row in content["rows"]},
            content["missing"],
        )

    def groups(self) -> list[Group]:
        """Return the tables in which brokers are ranked: one for each promise, and one for the backlog."""
        by_promise = [
            Group(promise.value, words, _BY_PROMISE, [peer for peer in self.ranked() if peer.promise is promise])
            for promise, words in PROMISES.items()
        ]
        held = [peer for peer in self.ranked() if any((it.name, peer.name) in self.figures for it in BACKLOG)]
        words = f"A backlog of {self.backlog:,} messages, with one durable form of each broker"
        return [self._only_measured(group) for group in (*by_promise, Group("backlog", words, BACKLOG, held))]

    def ranked(self) -> list[Peer]:
        return [peer for peer in self.peers if not peer.client and not peer.is_limit]

    def apart(self) -> list[Group]:
        """Return a table for each broker that its own client has measured."""
        figures = (*_BY_PROMISE, *BACKLOG)
        return [
            self._only_measured(Group(peer.name, f"{peer.label}, by its own client in {peer.client}", figures, [peer]))
            for peer in self.peers
            if peer.client
        ]

    def beside_limit(self) -> Group | None:
        """Return a table of the physical limit, and then ours with the same promise. None: it wasn't measured."""
        limit = next((peer for peer in self.peers if peer.is_limit), None)
        if limit is None:
            return None
        figures = [it for it in RATES if (it.name, limit.name) in self.figures]
        ours = [peer for peer in self.peers if peer.is_ours and peer.promise is limit.promise]
        return Group(limit.name, limit.label, figures, [limit, *ours]) if figures else None

    def ratios(self, figure: Figure, one: Peer, other: Peer) -> Sequence[float]:
        """Return the ratios round by round. Empty: one of the two lacks a round."""
        pair = [self.figures.get((figure.name, peer.name)) for peer in (one, other)]
        rounds = [it.values for it in pair if it is not None and len(it.values) == self.settings["rounds"]]
        if len(rounds) < len(pair):
            return []
        return [mine / theirs for mine, theirs in zip(*rounds, strict=True) if theirs]

    def client_time(self, figure: Figure, peer: Peer) -> Measured | None:
        """Return the processor time that a broker's own client took for a message."""
        time = CLIENT_TIMES.get(figure.name)
        return self.figures.get((time.name, peer.name)) if time is not None else None

    def group(self, name: str) -> Group:
        return next(group for group in self.groups() if group.name == name)

    def why_missing(self, figure: Figure, peer: Peer) -> str:
        names = (figure.name, part_of(figure), "")
        found = [it["why"] for it in self.missing if it["peer"] == peer.name and it["load"] in names]
        return found[0] if found else ""

    def ranking(self, figure: Figure, group: Group) -> list[Peer]:
        """Return those who were measured, the best one first."""
        there = [peer for peer in group.peers if (figure.name, peer.name) in self.figures]
        return sorted(
            there, key=lambda peer: self.figures[figure.name, peer.name].median, reverse=figure.is_more_better
        )

    def ahead(self, figure: Figure, group: Group) -> Ahead | None:
        """Return who is ahead. None: nobody, as all are equal, or nobody was measured."""
        ranking = self.ranking(figure, group)
        if not ranking or (figure.unit == LOST and self._is_equal(figure, ranking)):
            return None
        first = ranking[0]
        other = next((peer for peer in ranking if peer.is_ours != first.is_ours), None)
        if other is None:
            return Ahead(first, None, None, True)
        mine, theirs = self.figures[figure.name, first.name], self.figures[figure.name, other.name]
        return Ahead(first, other, _factor(mine.median, theirs.median), not mine.overlaps(theirs))

    def _is_equal(self, figure: Figure, ranking: Sequence[Peer]) -> bool:
        return len(ranking) > 1 and len({self.figures[figure.name, peer.name].median for peer in ranking}) == 1

    def _only_measured(self, group: Group) -> Group:
        figures = [it for it in group.figures if self.ranking(it, group)]
        return replace(group, figures=figures)


def _factor(one: float, other: float) -> float | None:
    if one == other:
        return 1.0  # also if both have lost nothing
    return max(one, other) / min(one, other) if min(one, other) > 0 else None


def _measured(row: Mapping[str, Any]) -> Measured:
    return Measured(row["median"], row["values"], row["ratio"], row["note"] or "")
