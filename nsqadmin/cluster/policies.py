"""The policies of topics and channels, read from the nodes' `/config/policy` and compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nsqadmin.cluster.sane import Json, NotUnderstood, check_count, check_numbers, moment, text

_MOST_KEYS: Final = 100
_LONGEST_VALUE: Final = 200  # characters
_NANOSECONDS: Final = 1e9
_ODD: Final = (TypeError, ValueError, AttributeError, KeyError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A key in force, and its source."""

    key: str
    value: str  # as in the file
    line: int  # of its entry
    is_dry: bool  # only counts, without acting


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePolicy:
    """One node's report about its policy file."""

    node: str
    path: str = ""
    digest: str = ""  # empty: it has no policy file
    read_at: float = 0.0  # when that content took effect, by our clock
    error: str = ""  # why a later content was refused
    of_topic: tuple[Demand, ...] = ()
    of_channel: tuple[Demand, ...] = ()
    untold: str = ""  # why we don't have it


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A key with one of its values."""

    key: str
    demand: Demand | None  # None: these nodes have no such key
    nodes: tuple[str, ...]  # where it applies; empty: on all nodes that report


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One content of a policy file, and the nodes that use it."""

    digest: str  # empty: no file
    nodes: tuple[NodePolicy, ...]


def read_policy(node: str, document: Any, *, skew: float = 0.0) -> NodePolicy:
    """Parse a node's answer. Raise NotUnderstood."""
    try:
        return NodePolicy(
            node=node,
            path=text(document["path"]),
            digest=text(document["digest"]),
            read_at=_moment(document["read_at"], skew),
            error=text(document["error"]),
            of_topic=_demands(document.get("topic") or {}),
            of_channel=_demands(document.get("channel") or {}),
        )
    except NotUnderstood:
        raise
    except _ODD as error:
        raise NotUnderstood(f"its answer cannot be read: {error!r}") from error


def _moment(timestamp: Any, skew: float) -> float:
    at = moment(timestamp / _NANOSECONDS)
    return at - skew if at else 0.0


def _demands(raw: Json) -> tuple[Demand, ...]:
    check_count(len(raw), _MOST_KEYS, "keys of a policy")
    return tuple(_demand(text(key), it) for key, it in raw.items())


def _demand(key: str, raw: Json) -> Demand:
    check_numbers(raw["line"])
    value = json.dumps(raw["value"], ensure_ascii=False)[:_LONGEST_VALUE]
    return Demand(key=key, value=value, line=int(raw["line"]), is_dry=raw["dry_run"] is True)


def rows_of(demands: Sequence[tuple[str, Sequence[Demand]]]) -> tuple[Row, ...]:
    """Return the keys in force. `demands` are the reporting nodes with their keys.

    If all nodes agree on a key, it is one row; otherwise each value is a row, and so are the nodes without the key.
    """
    by_node = {node: {it.key: it for it in told} for node, told in demands}
    keys = dict.fromkeys(it.key for _, told in demands for it in told)
    return tuple(row for key in keys for row in _rows_of_key(key, {node: by_node[node].get(key) for node in by_node}))


def _rows_of_key(key: str, by_node: dict[str, Demand | None]) -> Iterator[Row]:
    found = dict.fromkeys(by_node.values())
    for demand in found:
        nodes = tuple(node for node, it in by_node.items() if it == demand)
        yield Row(key=key, demand=demand, nodes=nodes if len(found) > 1 else ())


def files_of(policies: Iterable[NodePolicy]) -> tuple[File, ...]:
    """Return the files of the reporting nodes, the most frequent first."""
    by_digest: dict[str, list[NodePolicy]] = {}
    for policy in policies:
        if not policy.untold:
            by_digest.setdefault(policy.digest, []).append(policy)
    files = [File(digest=digest, nodes=tuple(nodes)) for digest, nodes in by_digest.items()]
    return tuple(sorted(files, key=lambda file: (-len(file.nodes), not file.digest)))
