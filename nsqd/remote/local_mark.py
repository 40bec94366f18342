"""What a data path says about its place in the store, and whether an owner may continue with it.

`remote.json` is replaced durably when an owner has made the data path what it has to be, before it sends a slot, and with
each root. It answers one question: is the data path what the last owner of the name had, so that everything in it counts,
even what was never shipped? There are three reasons to say no, and then the data path is *adopted*: the store is right,
and the rest goes aside.

- Another writer was the last owner that has written a slot.
- The data path is a copy from before the newest root, for example a snapshot that was restored.
- There is no mark, or it is another node's.

A claim leaves the mark alone. So if a start dies at any moment before it has settled the data path, the next one decides
the same: a writer is an owner once, and roots only get newer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from nsqcommon.remote.framing import BadObject, frame, unframe
from nsqcommon.remote.names import Run, parse_run


class Decision(Enum):
    CONTINUE = "continue"
    ADOPT = "adopt"


@dataclass(frozen=True, slots=True)
class LocalMark:
    """`writers`: the owner, and the one before it, which counts as the last one until ours has written a slot.

    `root`: the newest root whose operations are all on this disk, in the sense of fsync. It is noted before that root is
    committed, so a data path with an older one is a copy from before.

    `boot`: that of the machine when the data path was made what it has to be. After a power cut it is another one.
    """

    node: str
    writers: tuple[str, ...]
    root: Run
    boot: str = ""

    @property
    def is_first(self) -> bool:
        """Whether this is the mark of a start that may have died before it created the node."""
        return len(self.writers) == 1

    def proved(self, root: Run) -> LocalMark:
        """Return the mark to save before this root is committed."""
        return replace(self, root=root)


def decide(mark: LocalMark | None, node: str, last_owner: str, root: Run) -> Decision:
    """Return whether the data path with this mark may be continued. `root`: the newest one that the chain has committed."""
    if mark is None or mark.node != node:
        return Decision.ADOPT
    if last_owner not in mark.writers or mark.root.number < root.number:
        return Decision.ADOPT
    return Decision.CONTINUE


def first_mark(node: str, first: Run) -> LocalMark:
    """Return the mark to save before a new node is created in the store, so that a start which dies then continues."""
    return LocalMark(node, (first.writer,), first)


def encode_mark(mark: LocalMark) -> bytes:
    return frame(["local", mark.node, list(mark.writers), str(mark.root), mark.boot])


def decode_mark(data: bytes) -> LocalMark:
    match unframe(data)[0][:5]:
        case ["local", str(node), [*writers], root, str(boot)] if all(isinstance(it, str) for it in writers):
            return LocalMark(node, tuple(writers), parse_run(root), boot)
    raise BadObject("this is not the mark of a data path")
