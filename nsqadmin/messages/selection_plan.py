"""The base of all actions on selected messages: a plan for the user to confirm, and each node's result.

A plan is built from the nodes' answers and lists the consequences. It also decides which requests to send and how to
parse the answers, and puts the result into words. It never waits: selection_acting.py sends the requests. So a single
class has the whole action.
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
    """A request to a node for an action."""

    path: str
    arguments: Sequence[tuple[str, object]]
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A node that gets no request."""

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
    """One node's result."""

    node: str
    asked: int
    done: int = 0
    error: str = ""  # why the node failed, perhaps in part
    may_follow: bool = False  # the node got the request and hasn't confirmed it: it may have done it, or still do it

    def seen(self, sight: Sight) -> Self:
        """Return the part that a user with this sight may see."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionAction:
    """The description of an action, independent of a plan."""

    name: str  # in the audit log and in addresses of pages
    right: Right  # required for it
    does: str  # as in “refused to kick buried messages of t/c”
    label: str = ""  # start of its button's label; empty: it has no button
    icon: str = ""
    done: str = "So far"  # heading of the column with each node's progress; empty: there is none
    words: Mapping[str, str] = field(default_factory=dict)  # meanings of nodes' error codes


S = TypeVar("S", bound=NodeShare)
R = TypeVar("R", bound=NodeResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionPlan(ABC, Generic[S, R]):
    """The consequences of an action on the selected messages of a channel."""

    topic: str
    channel: str
    shares: tuple[S, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    consequences: tuple[Consequence, ...] = ()

    @property
    def count(self) -> int:
        return sum(it.count for it in self.shares)

    # Confirming

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
        """The number that the user has to type as a confirmation, or the name; empty: none."""
        return ""

    @property
    def to_type(self) -> str:
        """What `must_type` is."""
        return "the number of messages"

    def is_confirmed_by(self, typed: str) -> bool:
        return not self.must_type or typed.replace(",", "") == self.must_type

    # Carrying out

    @property
    def named(self) -> tuple[tuple[str, object], ...]:
        """The arguments of a request that name the channel."""
        return ("topic", self.topic), ("channel", self.channel)

    @abstractmethod
    def conversation(self, share: S) -> Generator[tuple[R, NodeRequest], bytes, R]:
        """Yield a node's progress and the next request to it, and receive the answer; return the result.

        If the node doesn't answer, its progress is the result. An invalid answer raises KeyError, TypeError, ValueError
        or RecursionError.
        """

    # The result

    @abstractmethod
    def noted(self, results: Sequence[R]) -> str:
        """Return a line of the audit log for everyone who sees the topic."""

    @abstractmethod
    def outcome(self, results: Sequence[R]) -> str:
        """Return the result of all nodes in words."""

    def receipt(self, results: Sequence[R]) -> str:
        """Return the result of all nodes as a sentence."""
        silent = ", ".join(it.node for it in results if it.may_follow)
        return self.outcome(results) + (f"; asked, no answer: {silent}." if silent else ".")

    @abstractmethod
    def answered(self, result: R) -> str:
        """Return in words the answer of one node that hasn't failed."""

    def not_asked(self, node: LeftOut) -> str:
        return f"{node.node} was not asked: it {node.why}."

    def at_work(self, results: Sequence[R]) -> bool:
        """Return True if a node continues with it on its own."""
        return False

    def kicks(self, results: Sequence[R]) -> tuple[str, ...]:
        """Return the kicks that can be undone, each as NUMBER@NODE."""
        return ()

    def burials(self, results: Sequence[R]) -> tuple[str, ...]:
        """Return the burials that can be undone, each as REASON@NODE."""
        return ()


def result_of(results: Sequence[NodeResult], left_out: Sequence[object] = ()) -> str:
    """Return "ok", "partly" or "failed", as for other actions."""
    if not left_out and not any(it.error for it in results):
        return "ok"
    return "partly" if any(it.done or not it.error for it in results) else "failed"


def who_receives(channel: Channel, nodes: Sequence[str]) -> Iterator[Consequence]:
    """Say which consumers get messages that return to the channel on these nodes."""
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
