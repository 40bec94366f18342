"""What happens to a message when its task ends, on a consumption without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from nsqclient.aio import Message
from nsqclient.core.delivery import Delivery
from nsqjobs.taskiq.deliveries import Deliveries, TaskDelivery


class FakeSource:
    """An nsqd that writes down the answers."""

    topic, channel, address = "tasks", "jobs", "127.0.0.1:4150"
    can_bury = can_requeue_uncounted = True

    def __init__(self, msg_timeout: float = 60.0, max_msg_timeout: float = 900.0) -> None:
        self.msg_timeout = msg_timeout
        self.max_msg_timeout = max_msg_timeout
        self.said: list[str] = []
        self.touched = asyncio.Event()
        self.runtime: object = None

    def finish(self, delivery: Delivery) -> bool:
        delivery.answered = "finished"
        self.said.append("FIN")
        return True

    def requeue(self, delivery: Delivery, delay: float | None, backoff: bool, count: bool) -> bool:
        delivery.answered = "requeued"
        self.said.append("REQ" if count else "REQ free")
        return True

    def bury(self, delivery: Delivery, reason: str) -> bool:
        delivery.answered = "buried"
        self.said.append(f"BURY {reason}")
        return True

    def bury_after_last(self, delivery: Delivery, error: BaseException | None, backoff: bool) -> bool:
        return False

    def touch(self, delivery: Delivery) -> bool:
        self.said.append("TOUCH")
        self.touched.set()
        return True


def message_from(source: FakeSource) -> Message:
    return Message(source, 0, 1, b"0123456789abcdef", b"body", asyncio.get_running_loop().time())


def said_after(work: Callable[[TaskDelivery], Awaitable[None]], *, cancel: bool = False) -> list[str]:
    """Return what nsqd hears of a message that a task handles like this."""

    async def run() -> list[str]:
        source, deliveries = FakeSource(), Deliveries()
        deliveries.add(message_from(source))
        delivery = await deliveries.take()

        async def handle() -> None:
            delivery.begin()
            await work(delivery)

        task = asyncio.create_task(handle())
        if cancel:
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        deliveries.close()
        return source.said

    return asyncio.run(asyncio.wait_for(run(), 30))


async def acknowledge(delivery: TaskDelivery) -> None:
    await delivery.ack()


async def acknowledge_and_fail(delivery: TaskDelivery) -> None:
    await delivery.ack()
    raise RuntimeError


async def fail(delivery: TaskDelivery) -> None:
    raise RuntimeError


async def bury_and_acknowledge(delivery: TaskDelivery) -> None:
    delivery.bury("no such task")
    await delivery.ack()  # as taskiq does from 0.13 on


async def forget(delivery: TaskDelivery) -> None:
    pass


async def hang(delivery: TaskDelivery) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (acknowledge, ["FIN"]),
        (acknowledge_and_fail, ["FIN"]),
        (fail, ["REQ"]),
        (bury_and_acknowledge, ["BURY no such task"]),
        (forget, []),  # nsqd delivers it again after its timeout
    ],
)
def test_the_end_of_a_task(work: Callable[[TaskDelivery], Awaitable[None]], said: list[str]) -> None:
    assert said_after(work) == said


def test_a_cancelled_task_is_given_back_uncounted() -> None:
    assert said_after(hang, cancel=True) == ["REQ free"]


def in_loop(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


def test_what_the_receiver_has_not_taken_is_given_back_at_once_and_the_rest_at_the_end() -> None:
    async def run() -> None:
        taken, waiting, deliveries = FakeSource(), FakeSource(), Deliveries()
        deliveries.add(message_from(taken))
        deliveries.add(message_from(waiting))
        await deliveries.take()
        deliveries.give_back_waiting()
        assert (taken.said, waiting.said) == ([], ["REQ free"])
        deliveries.close()
        assert taken.said == ["REQ free"]

    in_loop(run())


def test_a_message_that_was_lost_while_it_waited_is_not_taken() -> None:
    async def run() -> None:
        lost, next_one, deliveries = message_from(FakeSource()), message_from(FakeSource()), Deliveries()
        deliveries.add(lost)
        deliveries.add(next_one)
        lost.answered = "lost"
        assert (await deliveries.take()).message is next_one
        deliveries.close()

    in_loop(run())


def test_a_message_is_touched_while_it_waits() -> None:
    async def run() -> None:
        source, deliveries = FakeSource(msg_timeout=0.4), Deliveries()
        deliveries.add(message_from(source))
        await source.touched.wait()
        deliveries.close()

    in_loop(run())


def test_a_message_is_not_touched_after_nsqd_has_lost_its_patience(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        source, deliveries = FakeSource(msg_timeout=0.2, max_msg_timeout=0.0), Deliveries()
        deliveries.add(message_from(source))
        while not caplog.records:  # noqa: ASYNC110  # a log gives no event
            await asyncio.sleep(0.01)
        deliveries.close()
        assert "TOUCH" not in source.said

    in_loop(run())
    assert "--max-msg-timeout" in caplog.text


def test_an_error_of_the_consumer_reaches_the_receiver_after_what_has_come() -> None:
    async def run() -> None:
        deliveries = Deliveries()
        deliveries.add(message_from(FakeSource()))
        deliveries.fail(ConnectionError("no"))
        await deliveries.take()
        with pytest.raises(ConnectionError):
            await deliveries.take()
        deliveries.close()

    in_loop(run())
