"""Cancels and reschedules a producer's messages: asks all nsqds in parallel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from nsqclient.core.errors import ConnectError, NSQError
from nsqclient.core.recall import Counts, RecallTarget, ResultT, check_support, place_of, read_counts, summed
from nsqclient.shell.runtime import RequestFailed, within
from nsqclient.shell.targets import Answering, host_of
from nsqclient.shell.tls import context_of

if TYPE_CHECKING:
    from nsqclient.core.config import Config
    from nsqclient.shell.node import ProducerNode
    from nsqclient.shell.runtime import Runtime

TIMEOUT: Final = 10.0  # seconds


async def recall(
    runtime: Runtime,
    nodes: Sequence[ProducerNode],
    target: str,
    kind: type[ResultT],
    config: Config,
    timeout: float,
) -> ResultT:
    """Send the request to all of these nsqds and return the sum of their answers. Raise Incomplete or Unsupported."""
    silent: Counts | NSQError = ConnectError(f"no answer within {timeout:g} seconds")

    async def ask(node: ProducerNode) -> Counts | NSQError:
        return await within(runtime, timeout, partial(_ask, runtime, node, target, kind, config), silent)

    answers = await runtime.together([partial(ask, node) for node in nodes])
    return summed(kind, zip([node.address for node in nodes], answers, strict=True))


async def _ask(
    runtime: Runtime, node: ProducerNode, target: str, kind: type[ResultT], config: Config
) -> Counts | NSQError:
    try:
        connection = await node.connected()
        check_support(connection)
        if isinstance(node.target, Answering):
            status, body = await node.target.post(target)
        else:
            place = place_of(connection, config.server_hostname or host_of(node.target), config)
            status, body = await _post(runtime, place, f"{target}&node={place.node}", config)
        return read_counts(status, body, kind)
    except NSQError as error:
        return error
    except OSError as error:  # of an object in place of an address
        return ConnectError(str(error))


async def _post(runtime: Runtime, place: RecallTarget, target: str, config: Config) -> tuple[int, bytes]:
    tls = context_of(config) if place.is_secure else None
    try:
        answer = await runtime.post(place.host, place.port, target, name=place.name, tls=tls, headers=place.headers)
    except RequestFailed as error:
        raise ConnectError(f"HTTP port {place.port}: {error}") from error
    return answer.status, answer.body
