"""The interface between the shell and an event loop. `nsqclient/_trio.py` and `nsqclient/aio.py` implement it.

Nothing in `shell` knows a loop. Names and rules are trio's. For example, a task that is cancelled before its first step
still runs until its first wait, because a publisher may depend on its `finally`. And a scope cancels the work inside
it, never the code around it.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from math import inf
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from nsqclient.core.config import Config
    from nsqclient.core.connection import NsqdConnection
    from nsqclient.core.delivery import Delivery
    from nsqclient.core.publication import Outcome
    from nsqclient.shell.targets import Target
    from nsqcommon.wire.http_exchange import Answer, Headers

T = TypeVar("T")
Work = Callable[[], Awaitable[T]]


class RequestFailed(Exception):
    """No usable HTTP answer. The text says why."""


class ParkingLot(Protocol):
    """Waiting tasks, woken in the order in which they came."""

    def __len__(self) -> int:
        """Return the number of waiting tasks."""

    async def park(self) -> None:
        """Wait to be woken."""

    def unpark(self, *, count: int = 1) -> object:
        """Wake up to `count` tasks."""

    def unpark_all(self) -> object:
        """Wake all waiting tasks."""


class CancelScope(Protocol):
    """Work with a deadline, which you can also cancel, while the task around it goes on. Each scope runs once."""

    async def run(self, work: Work[T], otherwise: T) -> T:
        """Return the result of `work`, or `otherwise` after a cancellation or the deadline."""

    def cancel(self) -> None:
        """Cancel the work at its next wait, even if `run` comes later."""

    def set_deadline(self, deadline: float) -> None:
        """Replace the deadline."""


class ClientTasks(Protocol):
    """The tasks of one client. If its caller is cancelled, they go on until the end of the block that opened them."""

    def start(self, work: Work[None]) -> None:
        """Start a task."""


class SocketLink(Protocol):
    """The socket of one connection. Call `wake` after sending on the connection."""

    def wake(self) -> None:
        """Write the connection's pending bytes soon."""

    def hold(self) -> None:
        """Collect pending bytes until `release`, which may write them at once."""

    def release(self) -> None:
        """End `hold`."""

    async def serve(self, connection: NsqdConnection) -> None:
        """Read and write until the connection is finished, and always close the socket.

        Raises an NSQError if an error ended the connection.
        """


class Requests(Protocol):
    """HTTP requests, on connections that may stay open until `close`."""

    async def get(
        self, host: str, port: int, target: str, *, tls: ssl.SSLContext | None, headers: Headers, timeout: float
    ) -> Answer:
        """Return the answer to a GET, whatever its status. Raise RequestFailed."""

    async def close(self) -> None:
        """Close idle connections."""


class Runtime(Protocol):
    """One loop, as one consumer or producer uses it."""

    @property
    def clock(self) -> Callable[[], float]:
        """A function that returns the loop's time."""

    async def checkpoint(self) -> None:
        """Let other tasks run. A checkpoint: this one may be cancelled."""

    async def sleep(self, seconds: float) -> None:
        """Wait for this many seconds."""

    def parking_lot(self) -> ParkingLot:
        """Return an empty parking lot."""

    def scope(self, deadline: float = inf, *, is_shielded: bool = False) -> CancelScope:
        """Return a scope. `is_shielded`: a cancellation from outside doesn't reach it; only its deadline ends it."""

    async def fail_after(self, seconds: float, work: Work[T]) -> T:
        """Return the result of `work`. At the timeout raise TimeoutError on asyncio, trio.TooSlowError on trio."""

    async def together(self, works: Sequence[Work[T]]) -> list[T]:
        """Run all of them at the same time and return their results.

        If one raises, the others are cancelled. If several raise, you get the first error, not a group.
        """

    def tasks(self, failed: Callable[[BaseException], None] | None = None) -> AbstractAsyncContextManager[ClientTasks]:
        """Return a block with tasks, which are cancelled at its end.

        If a task raises, trio cancels the block, which then raises the error, and asyncio calls `failed`.
        """

    def beside(self, work: Work[None], until: float) -> AbstractAsyncContextManager[None]:
        """Return a block that runs `work` beside it. At `until` it is cancelled, and raises like `fail_after`."""

    def is_stray(self, error: BaseException) -> bool:
        """Return True if an error is the cancellation of something this task awaited, not of the task itself.

        Trio has no such thing. On asyncio, awaiting a task that gets cancelled also raises CancelledError.
        """

    def wait_for(self, outcome: Outcome) -> Awaitable[None]:
        """Wait for an outcome that isn't done yet."""

    async def call_in_thread(self, handler: Callable[[Any], Any], message: Delivery, limiter: Any) -> None:
        """Call a plain handler in a thread, with a copy of the message that it can answer there."""

    async def dial(self, target: Target, config: Config) -> SocketLink:
        """Connect to an nsqd. Raise ConnectError."""

    def requests(self, *, connect_timeout: float) -> Requests:
        """Return a sender of GETs."""

    async def post(
        self, host: str, port: int, target: str, *, name: str, tls: ssl.SSLContext | None, headers: Headers
    ) -> Answer:
        """Return the answer to a POST, whatever its status. Raise RequestFailed. `name` is the server's name."""


async def within(runtime: Runtime, seconds: float, work: Work[T], otherwise: T) -> T:
    """Return the result of `work`, or `otherwise` after a timeout."""
    return await runtime.scope(runtime.clock() + seconds).run(work, otherwise)


class Flag:
    """A flag that tasks can wait for. Waiting doesn't clear it."""

    def __init__(self, runtime: Runtime) -> None:
        self.is_set = False
        self._checkpoint = runtime.checkpoint
        self._lot = runtime.parking_lot()

    def set(self) -> None:
        """Set the flag and wake all waiting tasks."""
        if not self.is_set:
            self.is_set = True
            self._lot.unpark_all()

    def clear(self) -> None:
        self.is_set = False

    async def wait(self) -> None:
        """Wait until the flag is set, and let other tasks run at least once."""
        if self.is_set:
            await self._checkpoint()
        else:
            await self._lot.park()
