"""The base of all actions on selected messages: a plan that the user confirms, and the result of each node.

A plan is made from the nodes' answers and says what would happen. It also decides what each node is sent and how its
answers are read, and puts the result into words. It never waits: selection_acting.py sends the requests. So you find all
that an action does in one class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, Self, TypeVar

from nsqadmin.actions.plan import Consequence
from nsqadmin.cluster.model import Paused, Severity

if TYPE_CHECKING:
    from nsqadmin.access import Identity, Right
    from nsqadmin.cluster.model import Channel
    from nsqadmin.messages.lists import Sight

FEW: Final = 5  # names in a sentence


class NodeRequest(NamedTuple):
    """What a node is sent for an action."""

    path: str
    arguments: Sequence[tuple[str, object]]
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A node that is not asked to do anything."""

    node: str
    why: str
    last_known: int = 0


class NodeShare(Protocol):
    """One node's part."""

    @property
    def node(self) -> str: ...

    @property
    def count(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    """What one node has done of what it was asked for."""

    node: str
    asked: int
    done: int = 0
    error: str = ""  # why the node did not do it, or not completely
    may_follow: bool = False  # it was asked, and may have done it or still do it, although it has not said so

    def seen(self, sight: Sight) -> Self:
        """Return what a user with this sight may see of it."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionAction:
    """What is known of an action before it has a plan."""

    name: str  # as the audit log and the addresses of pages have it
    right: Right  # that it needs
    does: str  # as in “refused to kick buried messages of t/c”
    label: str = ""  # of its button, before what it is about; empty: it has none of its own
    icon: str = ""
    done: str = "So far"  # the head of the column with what each node has done; empty: there is none
    words: Mapping[str, str] = field(default_factory=dict)  # what codes of nodes' errors mean


S = TypeVar("S", bound=NodeShare)
R = TypeVar("R", bound=NodeResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionPlan(ABC, Generic[S, R]):
    """What an action would do with the selected messages of a channel."""

    topic: str
    channel: str
    shares: tuple[S, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    consequences: tuple[Consequence, ...] = ()

    @property
    def count(self) -> int:
        return sum(it.count for it in self.shares)

    # To confirm

    @property
    @abstractmethod
    def action(self) -> SelectionAction: ...

    def refusal(self, identity: Identity) -> str:
        """Return why the user may not do it; empty: it is allowed."""
        return identity.why_not(self.action.right, self.topic)

    @property
    @abstractmethod
    def title(self) -> str: ...

    @property
    def must_type(self) -> str:
        """The number that the user has to type as a confirmation; empty: none."""
        return ""

    # To carry out

    @property
    def named(self) -> tuple[tuple[str, object], ...]:
        """The arguments of a request that name the channel."""
        return ("topic", self.topic), ("channel", self.channel)

    @abstractmethod
    def conversation(self, share: S) -> Generator[tuple[R, NodeRequest], bytes, R]:
        """Yield what a node has done so far, and the next request to it, and be sent the answer; return the result.

        If the node does not answer, what it has done so far is the result. An answer that cannot be read raises
        KeyError, TypeError, ValueError or RecursionError.
        """

    # What has become of it

    @abstractmethod
    def noted(self, results: Sequence[R]) -> str:
        """Return a line of the audit log, which everybody may read who sees the topic."""

    @abstractmethod
    def outcome(self, results: Sequence[R]) -> str:
        """Return the result of all nodes in words."""

    def receipt(self, results: Sequence[R]) -> str:
        """Return the result of all nodes as a sentence."""
        silent = ", ".join(it.node for it in results if it.may_follow)
        return self.outcome(results) + (f"; asked, no answer: {silent}." if silent else ".")

    @abstractmethod
    def answered(self, result: R) -> str:
        """Return the answer of one node that has not failed in words."""

    def not_asked(self, node: LeftOut) -> str:
        return f"{node.node} was not asked: it {node.why}."

    def at_work(self, results: Sequence[R]) -> bool:
        """Return whether a node goes on with it by itself."""
        return False

    def kicks(self, results: Sequence[R]) -> tuple[str, ...]:
        """Return the kicks that can be taken back, each as NUMBER@NODE."""
        return ()


def result_of(results: Sequence[NodeResult], left_out: Sequence[object] = ()) -> str:
    """Return "ok", "partly" or "failed", as for other actions."""
    if not left_out and not any(it.error for it in results):
        return "ok"
    return "partly" if any(it.done or not it.error for it in results) else "failed"


def who_receives(channel: Channel, nodes: Sequence[str]) -> Iterator[Consequence]:
    """Say to whom messages go that come back to the channel on these nodes."""
    if channel.paused is not Paused.NO:
        where = "" if channel.paused is Paused.YES else " on some nodes"
        text = f"The channel is paused{where}: there they wait until it is unpaused."
        yield Consequence(text=text, severity=Severity.WARNING)
    consumers = {row.node: row.client_count for row in channel.nodes}
    without = [node for node in nodes if not consumers.get(node)]
    if len(without) == len(nodes):
        text = "No consumer is connected there: they wait in the channel."
        yield Consequence(text=text, severity=Severity.WARNING)
    else:
        yield Consequence(text=f"Its consumers will receive them: {_consumers(channel)}.")
        if without:
            text = f"No consumer is connected to {_names(without)}: there they wait."
            yield Consequence(text=text, severity=Severity.WARNING)


def _consumers(channel: Channel) -> str:
    hosts = dict.fromkeys(it.hostname or it.client_id for row in channel.nodes for it in row.clients or ())
    return _names(list(hosts)) if hosts else f"{channel.client_count:,}"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more
