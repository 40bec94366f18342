"""Consumers that nsqds refuse: for what they ask, for their secret, and for TLS."""

from __future__ import annotations

import pytest
import trio

from nsqclient import AuthError, Config, TLSRefused, open_consumer
from nsqclient import ProtocolError as ClientProtocolError
from nsqclient.testing import MemoryNSQD
from nsqcommon.wire.faults import Fault, ProtocolError
from nsqcommon.wire.frames import error_frame
from tests.nsqclient.consuming import until_said
from tests.support.jumping import jumping


@pytest.mark.parametrize("fault", [Fault.BAD_TOPIC, Fault.BAD_CHANNEL, Fault.INVALID, Fault.UNAUTHORIZED])
@jumping
async def test_a_consumer_that_no_nsqd_accepts_fails(fault: Fault) -> None:
    def refuse(connection: int, command: str) -> bytes | None:
        if command.startswith("SUB"):
            raise ProtocolError(fault, "no")
        return None

    async with MemoryNSQD(on_command=refuse) as server:
        with pytest.raises(ClientProtocolError, match=f"{fault.value} no"):
            async with open_consumer("t", "c", nsqd=server) as consumer:
                async for _ in consumer:
                    pass


@jumping
async def test_one_nsqd_that_refuses_does_not_end_a_consumer_that_others_accept() -> None:
    def refuse(connection: int, command: str) -> bytes | None:
        if command.startswith("SUB"):
            raise ProtocolError(Fault.INVALID, "no")
        return None

    async with MemoryNSQD(on_command=refuse) as bad, MemoryNSQD() as good:
        good.put("t", b"one")
        async with open_consumer("t", "c", nsqd=[bad, good]) as consumer:
            (await anext(consumer)).finish()
            await trio.sleep(60)
            good.put("t", b"two")
            (await anext(consumer)).finish()
        assert good.finished("t", "c") == [b"one", b"two"]


@jumping
async def test_a_secret_that_is_required_and_missing() -> None:
    async with MemoryNSQD(reply={"auth_required": True}) as server:
        with pytest.raises(AuthError, match=r"^Auth Required$"):
            async with open_consumer("t", "c", nsqd=server) as consumer:
                await anext(consumer)
        assert server.said() == ["IDENTIFY"]


@jumping
async def test_a_start_that_several_nsqds_refuse_raises_one_error() -> None:
    """The consumer fails for what the first of them said; `startup` would raise what the last one said."""

    class Slow:
        async def connect(self) -> trio.abc.Stream:
            await trio.sleep(0.5)
            return await late.connect()

    async with MemoryNSQD(reply={"auth_required": True}) as late, MemoryNSQD(reply={"auth_required": True}) as early:
        with pytest.raises(AuthError):
            async with open_consumer("t", "c", nsqd=[Slow(), early], startup="require"):
                pass


@jumping
async def test_a_wrong_secret() -> None:
    def refuse(connection: int, command: str) -> bytes | None:
        return error_frame(ProtocolError(Fault.AUTH_FAILED, "AUTH failed")) if command == "AUTH" else None

    async with MemoryNSQD(reply={"auth_required": True}, on_command=refuse) as server:
        with pytest.raises(AuthError, match=r"^Error authenticating E_AUTH_FAILED AUTH failed$"):
            async with open_consumer("t", "c", nsqd=server, config=Config(auth_secret="wrong")) as consumer:
                await anext(consumer)
        assert server.said() == ["IDENTIFY", "AUTH"]


@jumping
async def test_a_secret_that_nobody_wants_is_not_sent() -> None:
    async with MemoryNSQD() as server:
        async with open_consumer("t", "c", nsqd=server, config=Config(auth_secret="it")):
            await until_said(server, "RDY 1")
        assert "AUTH" not in server.said()


@jumping
async def test_tls_that_is_not_granted() -> None:
    async with MemoryNSQD() as server:
        with pytest.raises(TLSRefused):
            async with open_consumer("t", "c", nsqd=server, config=Config(tls="require")) as consumer:
                await anext(consumer)
        assert server.said() == ["IDENTIFY"]
        async with open_consumer("t", "c", nsqd=server, config=Config(tls="prefer", compression="snappy")):
            await until_said(server, "SUB t c")
