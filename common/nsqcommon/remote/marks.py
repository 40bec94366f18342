"""The small objects that say where to read on: `node`, `gone/RUN` and `hint`."""

from __future__ import annotations

from dataclasses import dataclass

from nsqcommon.remote.framing import BadObject, frame, unframe
from nsqcommon.remote.names import Run, parse_run


class ForgottenNode(BadObject):
    """`nsqd remote forget` has begun to delete the node, so the chain has no next run."""

    def __init__(self) -> None:
        super().__init__("nsqd remote forget has begun to delete it: run that again")


@dataclass(frozen=True, slots=True)
class NodeMark:
    """Who the node is, and the run that it began with. That run's root is empty."""

    node: str
    first: Run
    time_ns: int


def encode_node(mark: NodeMark) -> bytes:
    return frame(["node", mark.node, str(mark.first), mark.time_ns])


def decode_node(data: bytes) -> NodeMark:
    match unframe(data)[0][:4]:
        case ["node", str(node), first, int(time_ns)]:
            return NodeMark(node, parse_run(first), time_ns)
    raise BadObject("this is not a `node`")


def encode_gone(swept: Run, following: Run) -> bytes:
    """Return the mark that `swept` may be deleted, and that a chain has to be read from `following`."""
    return frame(["gone", str(swept), str(following)])


def encode_forgotten(run: Run) -> bytes:
    """Return the mark that a run of a forgotten node may be deleted. The run that it names will never exist."""
    return frame(["gone", str(run), str(run.following(run.writer)), True])


def decode_gone(data: bytes) -> Run:
    """Return the run from which to read instead. It is later than the one that is gone.

    Raises BadObject, which is a ForgottenNode if there is nothing to go on with.
    """
    fields, _ = unframe(data)
    match fields[:3]:
        case ["gone", swept, following] if parse_run(swept).number < parse_run(following).number:
            if fields[3:4] == [True]:
                raise ForgottenNode
            return parse_run(following)
    raise BadObject("this is not the mark of a run that is gone")


def encode_hint(run: Run) -> bytes:
    return frame(["hint", str(run)])


def decode_hint(data: bytes) -> Run:
    match unframe(data)[0][:2]:
        case ["hint", run]:
            return parse_run(run)
    raise BadObject("this is not a hint")
