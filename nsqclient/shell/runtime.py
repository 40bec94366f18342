"""What the shell needs of an event loop, as trio has it. `nsqclient/_trio.py` and `nsqclient/aio.py` implement it.

Nothing in `shell` knows a loop. The names are trio's, and so are the rules. For example, a task that is cancelled before
its first step runs until its first wait all the same, because a publisher may be waiting for what its `finally` does. And
a scope ends the work inside of it, and nothing around it.
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
    """There was no usable answer over HTTP. The text says why."""


class ParkingLot(Protocol):
    """Tasks that wait until somebody wakes them, the first one first."""

    def __len__(self) -> int:
        """Return how many wait."""

    async def park(self) -> None:
        """Wait to be woken."""

    def unpark(self, *, count: int = 1) -> object:
        """Wake up to `count` tasks."""

    def unpark_all(self) -> object:
        """Wake all tasks that wait now."""


class CancelScope(Protocol):
    """Work that can be cancelled, or has a deadline, while the task around it goes on. Each scope runs once."""

    async def run(self, work: Work[T], otherwise: T) -> T:
        """Return the result of `work`, or `otherwise` if it was cancelled or the deadline has passed."""

    def cancel(self) -> None:
        """End the work at its next wait, also if `run` has not been called yet."""

    def set_deadline(self, deadline: float) -> None:
        """Replace the deadline."""


class ClientTasks(Protocol):
    """The tasks of one client. They go on when its caller is cancelled, until the block that opened them has ended."""

    def start(self, work: Work[None]) -> None:
        """Start a task."""


class SocketLink(Protocol):
    """The socket of one connection. Whatever sends on the connection calls `wake`."""

    def wake(self) -> None:
        """Write soon what the connection has to send."""

    def hold(self) -> None:
        """Collect what the connection sends until `release`, which may write it at once."""

    def release(self) -> None:
        """End `hold`."""

    async def serve(self, connection: NsqdConnection) -> None:
        """Read and write until the connection is finished, and close the socket, whatever happens.

        Raises the NSQError that has ended it otherwise.
        """


class Requests(Protocol):
    """Requests over HTTP, on connections that may stay open until `close`."""

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
        """The function that returns the loop's time."""

    async def checkpoint(self) -> None:
        """Let other tasks run, and let this one be cancelled."""

    async def sleep(self, seconds: float) -> None:
        """Wait for so long."""

    def parking_lot(self) -> ParkingLot:
        """Return an empty parking lot."""

    def scope(self, deadline: float = inf, *, is_shielded: bool = False) -> CancelScope:
        """Return a scope. `is_shielded`: what is cancelled around it goes on until its deadline."""

    async def fail_after(self, seconds: float, work: Work[T]) -> T:
        """Return the result of `work`. Raise TimeoutError on asyncio, and trio.TooSlowError on trio."""

    async def together(self, works: Sequence[Work[T]]) -> list[T]:
        """Do all of them at the same time and return their results.

        If one raises, the others are cancelled. If several do, the first error is raised, and no group.
        """

    def tasks(self, failed: Callable[[BaseException], None] | None = None) -> AbstractAsyncContextManager[ClientTasks]:
        """Return a block that has tasks, and cancels them at its end.

        If a task raises, trio cancels the block, which then raises the error, and asyncio calls `failed`.
        """

    def beside(self, work: Work[None], until: float) -> AbstractAsyncContextManager[None]:
        """Return a block beside which `work` is done. At the time `until` it is cancelled, and raises as `fail_after`."""

    def is_stray(self, error: BaseException) -> bool:
        """Return whether an error is the cancellation of something that this task has awaited, and not its own.

        On trio there is no such thing. On asyncio, awaiting a task that somebody cancels raises CancelledError, too.
        """

    def wait_for(self, outcome: Outcome) -> Awaitable[None]:
        """Wait until an outcome that is not done is done."""

    async def call_in_thread(self, handler: Callable[[Any], Any], message: Delivery, limiter: Any) -> None:
        """Call a plain handler in a thread, with a copy of the message that may be answered there."""

    async def dial(self, target: Target, config: Config) -> SocketLink:
        """Connect to an nsqd. Raise ConnectError."""

    def requests(self, *, connect_timeout: float) -> Requests:
        """Return what sends GETs."""

    async def post(
        self, host: str, port: int, target: str, *, name: str, tls: ssl.SSLContext | None, headers: Headers
    ) -> Answer:
        """Return the answer to a POST, whatever its status. Raise RequestFailed. `name` is the server's."""


async def within(runtime: Runtime, seconds: float, work: Work[T], otherwise: T) -> T:
    """Return the result of `work`, or `otherwise` after so many seconds."""
    return await runtime.scope(runtime.clock() + seconds).run(work, otherwise)


class Flag:
    """A flag that tasks wait for. Waiting does not clear it."""

    def __init__(self, runtime: Runtime) -> None:
        self.is_set = False
        self._checkpoint = runtime.checkpoint
        self._lot = runtime.parking_lot()

    def set(self) -> None:
        """Set the flag and wake all tasks that wait."""
        if not self.is_set:
            self.is_set = True
            self._lot.unpark_all()

    def clear(self) -> None:
        self.is_set = False

    async def wait(self) -> None:
        """Return when the flag is set, and not before other tasks could run."""
        if self.is_set:
            await self._checkpoint()
        else:
            await self._lot.park()
