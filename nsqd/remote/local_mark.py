"""What a data path says about its place in the store, and whether an owner may continue with it.

`remote.json` is replaced durably before this process is able to own the name, and with each root. It answers one question:
is the data path what the last owner of the name had, so that everything in it counts, even what was never shipped? There
are four reasons to say no, and then the data path is *adopted*: what is in the store is right, and the rest goes aside.

- Another writer was the last owner.
- The data path is a copy from before the newest root, for example a snapshot that was restored.
- An earlier adoption was interrupted, so the data path is partly one thing and partly the other.
- There is no mark, or it is another node's.
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
    """`writers`: this process, and the owner before it, which counts as the last one until we have written a slot.

    `root`: the newest root whose operations are all on this disk, in the sense of fsync. It is noted before that root is
    committed, so a data path with an older one is a copy from before.

    `boot`: that of the machine when the data path was last made what it has to be. A claim doesn't change it: a start that
    dies before it has looked at the files would otherwise hide a power cut from the next one.
    """

    node: str
    writers: tuple[str, ...]
    root: Run
    boot: str = ""
    is_adopting: bool = False

    @property
    def is_first(self) -> bool:
        """Whether this is the mark of a start that may have died before it created the node."""
        return len(self.writers) == 1 and not self.is_adopting

    def proved(self, root: Run) -> LocalMark:
        """Return the mark to save before this root is committed."""
        return replace(self, root=root)

    def settled(self, boot: str) -> LocalMark:
        """Return the mark to save when the data path was made what it has to be, in this boot of the machine."""
        return replace(self, boot=boot, is_adopting=False)


def decide(mark: LocalMark | None, node: str, last_owner: str, root: Run) -> Decision:
    """Return whether the data path with this mark may be continued. `root`: the newest one that the chain has committed."""
    if mark is None or mark.node != node or mark.is_adopting:
        return Decision.ADOPT
    if last_owner not in mark.writers or mark.root.number < root.number:
        return Decision.ADOPT
    return Decision.CONTINUE


def first_mark(node: str, first: Run) -> LocalMark:
    """Return the mark to save before a new node is created in the store, so that a start which dies then continues."""
    return LocalMark(node, (first.writer,), first)


def next_mark(mark: LocalMark | None, node: str, last_owner: str, root: Run, *, writer: str) -> LocalMark:
    """Return the mark to save before `writer` puts its fence."""
    if decide(mark, node, last_owner, root) is Decision.ADOPT:
        return LocalMark(node, (writer, last_owner), root, is_adopting=True)
    assert mark is not None
    return LocalMark(node, (writer, last_owner), mark.root, mark.boot)


def encode_mark(mark: LocalMark) -> bytes:
    return frame(["local", mark.node, list(mark.writers), str(mark.root), mark.boot, mark.is_adopting])


def decode_mark(data: bytes) -> LocalMark:
    match unframe(data)[0][:6]:
        case ["local", str(node), [*writers], root, str(boot), bool(is_adopting)] if all(
            isinstance(it, str) for it in writers
        ):
            return LocalMark(node, tuple(writers), parse_run(root), boot, is_adopting)
    raise BadObject("this is not the mark of a data path")
