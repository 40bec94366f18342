"""The frames owed to one client, in the order in which it may get them.

Responses leave in the order of their commands. The OK of a publish belongs to its receipt, so the OK and all responses
after it wait until the log has settled the receipt. Message frames wait for the OK of SUB. They also wait for the OK of
each publish to the topic that the client consumes: a client that consumes what it publishes gets the OK first, as from
NSQ. Message frames wait for no other answer:

    PUB a, REQ that fails, PUB b    held: [OK a, error] [OK b], each until its receipt is settled
    a message                       sent at once, or with the last OK that it must not overtake
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nsqcommon.wire.faults import Fault, ProtocolError
from nsqcommon.wire.frames import OK_FRAME

if TYPE_CHECKING:
    from nsqcommon.wire.frames import Piece
    from nsqd.broker.batch import Receipt
    from nsqd.broker.feed import TopicFeed


class WaitingFrame:
    """Responses that wait for a receipt: the OK of its command, and all frames queued after it."""

    __slots__ = ("command", "frames", "message_pieces", "receipt", "watched")

    def __init__(self, receipt: Receipt, command: bytes) -> None:
        self.receipt = receipt
        self.command = command
        self.frames = [OK_FRAME]
        self.message_pieces = 0  # message pieces among the frames: not answers, and bounded by the ready count
        self.watched = False


class Outbox:
    """Frames for one client: those that may be sent now, and those held until the disk has answered.

    It watches receipts without changing them, and calls `wake` when it has something to send. It knows neither the
    commands nor the connection: if a held OK turns into an error, `release` returns the error to the client.
    """

    __slots__ = ("_consumed", "_frames", "_held_messages", "held", "owed", "wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake  # tells the connection to call `take`
        self.owed = 0  # answers that are held; beyond a limit the client is no longer read from
        self._consumed: TopicFeed | None = None  # the topic whose messages it gets, once it has subscribed
        self._frames: list[Piece] = []  # may be sent now
        # Answers that wait for the log; `take` returns all others. A deque would be most of what an idle client costs.
        self.held: list[WaitingFrame] = []
        # Where messages wait, after the last OK that they must not overtake.
        self._held_messages: WaitingFrame | None = None

    def respond(self, frame: bytes) -> None:
        """Add an answer that needs no receipt. It leaves after all that is owed already."""
        if self.held:
            self.held[-1].frames.append(frame)
            self.owed += 1
        else:
            self._frames.append(frame)

    def owe(self, receipt: Receipt, command: bytes, topic: TopicFeed | None = None) -> None:
        """Add the OK of `command`, to be sent once the receipt is settled.

        `topic` is where a publish goes. If the client consumes that topic, messages wait for this OK.
        """
        held = self.held
        if held and held[-1].receipt is receipt:
            held[-1].frames.append(OK_FRAME)
        else:
            held.append(WaitingFrame(receipt, command))
        self.owed += 1
        if topic is not None and topic is self._consumed:
            self._held_messages = held[-1]

    def owe_subscription(self, receipt: Receipt | None, topic: TopicFeed, release: Callable[[], None]) -> None:
        """Add the OK of SUB, which waits for the receipt if one is given. Messages from `topic` wait for this OK.

        `release` is called as soon as messages no longer have to wait. Without that call they might stay here for long:
        the client looks at its outbox only when something happens, and perhaps nothing else will.
        """
        if receipt is None:
            self.respond(OK_FRAME)
        else:
            self.owe(receipt, b"SUB")
        self._consumed = topic
        if self.held:
            self._held_messages = self.held[-1]
            self._held_messages.receipt.when_settled(release)

    def send_messages(self, pieces: list[bytes]) -> None:
        """Add message frames, given in pieces. The client's channel calls this."""
        held = self._held_messages
        if held is None:
            self._frames += pieces
        else:
            held.frames += pieces
            held.message_pieces += len(pieces)
        self.wake()

    def send_views(self, pieces: list[Piece]) -> None:
        """Add message frames like `send_messages`, given as pieces that may be views of a batch.

        Views that would have to wait for the log are copied: each keeps the whole batch in memory.
        """
        if self._held_messages is None:
            self._frames += pieces
            self.wake()
        else:
            self.send_messages([bytes(piece) for piece in pieces])

    def release(self) -> ProtocolError | None:
        """Move the responses whose receipts are settled to those that may be sent.

        If a publish has failed, forget all that is held after it, and return the error, which ends the client.
        """
        held = self.held
        released = 0
        for first in held:
            if not first.receipt.settled:
                break
            released += 1
            if first is self._held_messages:
                self._held_messages = None
            self.owed += first.message_pieces - len(first.frames)
            if first.receipt.error is not None:
                held.clear()
                self.owed = 0
                cause = first.command + b" failed " + first.receipt.error.encode()
                return ProtocolError(Fault(f"E_{first.command.decode()}_FAILED"), cause)
            self._frames += first.frames
        del held[:released]
        if held and not held[0].watched:
            held[0].watched = True
            held[0].receipt.when_settled(self.wake)
        return None

    def take(self) -> list[Piece]:
        """Return the pieces that may be sent now, and hand them over to the caller."""
        frames, self._frames = self._frames, []
        return frames

    def clear(self) -> None:
        """Forget all frames: nothing will be sent any more."""
        self.held.clear()
        self._frames.clear()
