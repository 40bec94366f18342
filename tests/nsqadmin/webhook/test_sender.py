"""Posts about incidents to real receivers that are slow, refuse, die and come back, on a clock that jumps."""

from __future__ import annotations

import json
import logging
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from bench.ports import take_port
from nsqadmin.cluster.model import Activity
from nsqadmin.diagnosis.incident import IncidentChange
from nsqadmin.options import Options
from nsqadmin.webhook.outbox import RETRY_FOR
from nsqadmin.webhook.sender import IncidentWebhook
from tests.nsqadmin.webhook.incidents import change, opened
from tests.support.http_server import HttpServer, Reply, Request
from tests.support.http_sink import HttpSink
from tests.support.jumping import hold_clock_while, run_with_threads
from tests.support.picture import NOW

OPENED, WORSE, CLOSED = (change(kind) for kind in ("opened", "worse", "closed"))


class Hanging(HttpServer):
    """Answers no request before `release` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()

    def reply(self, request: Request) -> Reply:
        self.release.wait(60)
        return Reply()


class Webhook:
    """A sender whose clock stands still while a receiver that answers is at work."""

    def __init__(self, *urls: str, hanging: Sequence[str] = (), **options: Any) -> None:
        self.activity: list[Activity] = []
        self.sender = IncidentWebhook(
            Options(incident_webhook=urls, **options),
            ssl.create_default_context(),
            self.activity.append,
            wall=lambda: NOW + 99,
        )
        self._awaited = [box for name, box in self.sender.outboxes.items() if name not in hanging]

    def observe(self, *changes: IncidentChange, now: float = NOW) -> None:
        present = {it.it.key for it in changes if it.kind.value != "closed"}
        self.sender.observe(changes, lambda: present, now)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        hold_clock_while(lambda: any(box.is_trying for box in self._awaited))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.sender.run)
            yield
            nursery.cancel_scope.cancel()

    def await_all(self) -> None:
        """Let the clock stand still for receivers, too, that have hung until now."""
        self._awaited = list(self.sender.outboxes.values())

    async def settle(self) -> None:
        """Wait until nothing waits for a receiver that answers."""
        while any(len(box) for box in self._awaited):  # noqa: ASYNC110  # tries need time to pass, too
            await trio.sleep(1)

    @property
    def counts(self) -> list[tuple[int, int, int]]:
        return [(box.sent, box.failed, len(box)) for box in self.sender.outboxes.values()]


def kinds(server: HttpServer) -> list[str]:
    return [json.loads(request.body)["kind"] for request in server.requests]


def statuses(*answers: int) -> Callable[[Request], int]:
    """Return these statuses one after the other, and 200 from then on."""
    left = list(answers)
    return lambda request: left.pop(0) if left else 200


def test_posts_arrive_with_a_link_to_the_incident() -> None:
    async def test() -> None:
        with HttpSink() as receiver:
            hook = Webhook(f"{receiver.url}/in?x=1", external_url="https://admin.example/", base_path="/nsq")
            async with hook.running():
                for news in (OPENED, WORSE, CLOSED):
                    hook.observe(news)
                    await hook.settle()
            assert kinds(receiver) == ["opened", "worse", "closed"]
            (request, *_) = receiver.requests
            assert (request.method, request.target, request.headers["content-type"]) == (
                "POST",
                "/in?x=1",
                "application/json",
            )
            assert json.loads(request.body)["url"] == f"https://admin.example/nsq/incidents/{OPENED.it.key}"
            assert hook.counts == [(3, 0, 0)]
            assert hook.activity == []

    run_with_threads(test)


def test_a_receiver_that_answers_500_twice_gets_it_once_more(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        with HttpSink(statuses(500, 500)) as receiver:
            hook = Webhook(receiver.url)
            async with hook.running():
                began = trio.current_time()
                hook.observe(OPENED, change("opened", opened("other")))
                await hook.settle()
                assert 1.5 <= trio.current_time() - began < 5
            subjects = [json.loads(body)["subject"] for body in receiver.bodies]
            assert subjects == ["orders/billing"] * 3 + ["other"]
            assert hook.counts == [(2, 0, 0)]
            assert [it.what for it in hook.activity] == ["incident_webhook_fails", "incident_webhook_works"]
            assert hook.activity[0].text.endswith(f"at {receiver.address}: got response 500")

    with caplog.at_level(logging.INFO, "nsqadmin"):
        run_with_threads(test)
    assert caplog.text.count("posts about incidents fail at") == 1
    assert caplog.text.count("again") == 1


def test_a_receiver_that_hangs_holds_up_no_other_and_gets_the_newest_state_later() -> None:
    async def test() -> None:
        with HttpSink() as quick, Hanging() as slow:
            hook = Webhook(slow.url, quick.url, hanging=[slow.address])
            async with hook.running():
                hook.observe(OPENED)
                await hook.settle()
                assert kinds(quick) == ["opened"]
                await trio.sleep(60)
                assert hook.counts == [(0, 0, 1), (1, 0, 0)]
                hook.observe(WORSE)
                await trio.sleep(30)
                slow.release.set()
                hook.await_all()
                await hook.settle()
            assert hook.counts == [(1, 0, 0), (2, 0, 0)]
            last = json.loads(slow.requests[-1].body)
            assert (last["kind"], last["key"]) == ("opened", OPENED.it.key)

    run_with_threads(test)


def test_a_receiver_that_is_not_there_gets_its_post_when_it_comes() -> None:
    async def test() -> None:
        with ExitStack() as stack:
            port = take_port(stack)
            hook = Webhook(f"http://127.0.0.1:{port}/")
            async with hook.running():
                hook.observe(OPENED)
                await trio.sleep(120)
                assert hook.counts == [(0, 0, 1)]
                assert "connection refused" in hook.activity[0].text
                receiver = stack.enter_context(HttpSink(port=port))
                await hook.settle()
            assert kinds(receiver) == ["opened"]

    run_with_threads(test)


def test_a_receiver_that_dies_during_a_request_gets_it_again() -> None:
    async def test() -> None:
        def dies_once(request: Request) -> int:
            if len(receiver.requests) == 1:
                raise ConnectionError
            return 200

        with HttpSink(dies_once) as receiver:
            hook = Webhook(receiver.url)
            async with hook.running():
                hook.observe(OPENED)
                await hook.settle()
            assert kinds(receiver) == ["opened", "opened"]
            assert hook.counts == [(1, 0, 0)]

    run_with_threads(test)


@pytest.mark.parametrize("status", [307, 404])
def test_a_refusal_and_a_redirect_end_a_post_at_once(status: int, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        with HttpSink(statuses(status)) as receiver:
            hook = Webhook(receiver.url)
            async with hook.running():
                hook.observe(OPENED, change("opened", opened("other")))
                await hook.settle()
            assert [json.loads(body)["subject"] for body in receiver.bodies] == ["orders/billing", "other"]
            assert {request.path for request in receiver.requests} == {"/"}
            assert hook.counts == [(1, 1, 0)]

    run_with_threads(test)
    assert "given up for 127.0.0.1" in caplog.text
    assert f"got response {status}" in caplog.text


def test_a_post_is_given_up_when_the_receiver_is_away_for_too_long() -> None:
    async def test() -> None:
        with HttpSink(lambda request: 503) as receiver:
            hook = Webhook(receiver.url)
            async with hook.running():
                hook.observe(OPENED)
                began = trio.current_time()
                await hook.settle()
                assert RETRY_FOR <= trio.current_time() - began < RETRY_FOR + 120
            assert hook.counts == [(0, 1, 0)]
            assert 30 < len(receiver.requests) < 70
            assert len(hook.activity) == 1

    run_with_threads(test)


def test_no_text_has_a_secret_of_the_url(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        with HttpSink(statuses(500, 404)) as receiver:
            hook = Webhook(f"http://me:hunter2@{receiver.address}/T0/hunter2?key=hunter2", "http://127.0.0.1:1/hunter2")
            async with hook.running():
                hook.observe(OPENED)
                await trio.sleep(2 * RETRY_FOR)
            assert [failed for _, failed, _ in hook.counts] == [1, 1]
            assert receiver.requests[0].headers["authorization"] == "Basic bWU6aHVudGVyMg=="
            assert "hunter2" not in f"{hook.activity} {list(hook.sender.outboxes)} {hook.sender.dump()}"

    with caplog.at_level(logging.DEBUG, "nsqadmin"):
        run_with_threads(test)
    assert "given up" in caplog.text
    assert "hunter2" not in caplog.text


def test_two_receivers_of_one_host_have_different_names() -> None:
    hook = Webhook("https://hooks.example/a", "https://hooks.example/b", "https://hooks.example/a")
    assert list(hook.sender.outboxes) == ["hooks.example", "hooks.example#2"]


def test_the_end_tries_what_waits_once_and_keeps_the_rest() -> None:
    async def test() -> None:
        with HttpSink() as quick, HttpSink(lambda request: 503) as sick, Hanging() as slow:
            urls = (quick.url, sick.url, slow.url)
            hook = Webhook(*urls, hanging=[slow.address])
            async with hook.running():
                hook.observe(OPENED)
                await trio.sleep(100)
                tries = len(sick.requests)
                hook.observe(change("opened", opened("other")))
                began = trio.current_time()
                await hook.sender.finish()
                assert trio.current_time() - began <= 3.5
            assert hook.counts == [(2, 0, 0), (0, 0, 2), (0, 0, 2)]
            assert len(sick.requests) == tries + 1

            again = Webhook(*urls)
            again.sender.load(hook.sender.dump())
            sick.answer = statuses()
            slow.release.set()
            async with again.running():
                again.observe(OPENED, change("opened", opened("other")))
                await again.settle()
            assert again.counts == [(0, 0, 0), (2, 0, 0), (2, 0, 0)]
            assert kinds(sick)[-2:] == ["opened", "opened"]
            slow.release.set()

    run_with_threads(test)


def test_what_ended_while_nsqadmin_was_down_is_closed() -> None:
    async def test() -> None:
        with HttpSink() as receiver:
            hook = Webhook(receiver.url)
            async with hook.running():
                hook.observe(OPENED)
                await hook.settle()
            again = Webhook(receiver.url)
            again.sender.load(hook.sender.dump())
            async with again.running():
                for seconds in range(0, 130, 5):
                    again.observe(now=NOW + 1000 + seconds)
                await again.settle()
            assert kinds(receiver) == ["opened", "closed"]

    run_with_threads(test)


@pytest.mark.parametrize("dumped", [{"format": 2}, {"format": 1, "told": 5}, [], None])
def test_a_file_that_cannot_be_read_is_refused(dumped: object) -> None:
    with pytest.raises(ValueError, match=r"expected|object|must|array|list"):
        Webhook("http://127.0.0.1:1").sender.load(dumped)
