"""The troubles of the demo's shop. `traffic.py` sells and ships; these are the departments where something goes wrong.

    shop.py office --nsqd 127.0.0.1:4150 ...     publishes all that the others work on, and sends invoices and reminders
    shop.py labels --nsqd 127.0.0.1:4150 ...     its printer jams half a minute after the start: it holds messages and finishes none
    shop.py ledger --release 2.0 --nsqd ...      a bad release: after half a minute, two of three payments fail; 1.9 is fine
    shop.py tasks --nsqd 127.0.0.1:4150 ...      a Celery worker, and a thread that sends it tasks, some of which fail

An invoice of a customer without an address is buried, with the reason. A reminder waits minutes for its time.
SIGTERM ends each of them.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Final

import trio

import nsqclient
from deploy.demo.traffic import GOODS, stop_on_signal
from nsqcommon.options import STRINGS, option
from nsqcommon.subcommands import Command, Commands, required, run_one_of

CITIES: Final = ("Oslo", "Lisbon", "Ghent", "Turin")
TROUBLE_AFTER: Final = 30.0  # seconds from the start of a program
BAD_RELEASE: Final = "2.0"
FAILING_SHARE: Final = 2 / 3
NO_ADDRESS_SHARE: Final = 1 / 30
LONGEST_DELAY: Final = 1200.0
QUEUE: Final = "mails"  # Celery's

_Handler = Callable[[nsqclient.Message], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Paper:
    """One kind of message that the office publishes: its topic, and how many a second."""

    topic: str
    rate: float
    written: Callable[[int], dict[str, object]]
    longest_delay: float = 0.0


def _payment(number: int) -> dict[str, object]:
    return {"order": number, "amount": random.randint(5, 500), "card": random.choice(("visa", "amex", "giro"))}


def _invoice(number: int) -> dict[str, object]:
    customer = {"id": random.randint(1, 2000), "city": random.choice(CITIES)}
    if random.random() < NO_ADDRESS_SHARE:
        del customer["city"]
    return {"order": number, "customer": customer, "total": random.randint(5, 500)}


def _shipment(number: int) -> dict[str, object]:
    return {"order": number, "item": random.choice(GOODS), "city": random.choice(CITIES)}


def _reminder(number: int) -> dict[str, object]:
    return {"order": number, "text": "How do you like it? Write a review."}


PAPERS: Final = (
    Paper("payments", 6, _payment),
    Paper("invoices", 6, _invoice),
    Paper("shipments", 8, _shipment),
    Paper("reminders", 1, _reminder, LONGEST_DELAY),
)


async def until_signal(work: Callable[[], Awaitable[None]]) -> None:
    """Cancel the work at SIGTERM, also if it is stuck. Messages that it holds go to others."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_on_signal, nursery.cancel_scope.cancel)
        await work()
        nursery.cancel_scope.cancel()


async def publish(producer: nsqclient.Producer, paper: Paper) -> None:
    number = 0
    while True:
        number += 1
        delay = random.uniform(1, paper.longest_delay) if paper.longest_delay else None
        try:
            await producer.publish(paper.topic, json.dumps(paper.written(number)).encode(), delay=delay)
        except nsqclient.PublishError as error:
            print(json.dumps({"not published": str(error)}), flush=True)
        await trio.sleep(random.expovariate(paper.rate))


async def send_invoice(message: nsqclient.Message) -> None:
    customer = json.loads(message.body)["customer"]
    await trio.sleep(random.uniform(0, 0.05))
    if "city" not in customer:
        raise nsqclient.GiveUp(f"no address of customer {customer['id']}")


async def send_reminder(message: nsqclient.Message) -> None:
    await trio.sleep(0.01)


async def consume(
    addresses: Sequence[str], topic: str, channel: str, handler: _Handler, *, program: str, concurrency: int = 4
) -> None:
    config = nsqclient.Config(max_in_flight=4 * concurrency, user_agent=program, client_id=program.partition("/")[0])
    async with nsqclient.open_consumer(topic, channel, nsqd=addresses, config=config) as consumer:
        await consumer.run(handler, concurrency=concurrency)


async def office(addresses: Sequence[str]) -> None:
    async with (
        nsqclient.open_producer(addresses, strategy="round_robin", retry_timeout=5) as producer,
        trio.open_nursery() as nursery,
    ):
        for topic, channel, handler in (("invoices", "mail", send_invoice), ("reminders", "send", send_reminder)):
            nursery.start_soon(partial(consume, addresses, topic, channel, handler, program=f"{channel}/3.1"))
        for paper in PAPERS:
            nursery.start_soon(publish, producer, paper)


async def labels(addresses: Sequence[str], trouble_after: float) -> None:
    jams_at = trio.current_time() + trouble_after

    async def print_label(message: nsqclient.Message) -> None:
        if trio.current_time() > jams_at:
            await trio.sleep_forever()
        await trio.sleep(random.uniform(0, 0.05))

    await consume(addresses, "shipments", "labels", print_label, program="labels/1.4")


async def ledger(addresses: Sequence[str], trouble_after: float, release: str) -> None:
    fails_at = trio.current_time() + (trouble_after if release == BAD_RELEASE else inf)

    async def book(message: nsqclient.Message) -> None:
        await trio.sleep(random.uniform(0, 0.05))
        if trio.current_time() > fails_at and random.random() < FAILING_SHARE:
            raise nsqclient.Requeue(delay=5, backoff=False)

    await consume(addresses, "payments", "ledger", book, program=f"ledger/{release}")


def make_tasks(addresses: Sequence[str]) -> Any:
    """Return a Celery app with the tasks of the shop."""
    from celery import Celery

    app = Celery("shop", broker=f"nsq://{','.join(addresses)}", set_as_current=False)
    app.conf.update(
        task_default_queue=QUEUE,
        task_acks_late=True,
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        worker_send_task_events=False,
        broker_transport_options={"report": True},  # so nsqadmin shows what runs, and why a task failed
    )

    @app.task(name="shop.send_receipt", bind=True, max_retries=2)  # type: ignore[untyped-decorator]
    def send_receipt(self: Any, order: int, to: str) -> None:
        time.sleep(random.uniform(0, 0.2))
        if order % 15 == 0:
            raise self.retry(exc=ConnectionError("the mail server said 451"), countdown=20)

    @app.task(name="shop.resize_photo")  # type: ignore[untyped-decorator]
    def resize_photo(photo: str, *, width: int) -> None:
        time.sleep(random.uniform(3, 8))

    @app.task(name="shop.charge_card")  # type: ignore[untyped-decorator]
    def charge_card(order: int, *, cents: int) -> None:
        time.sleep(random.uniform(0, 0.1))
        if cents > 45_000:
            raise ValueError(f"{cents / 100:.2f} is above the limit of the card")

    return app


def send_tasks(app: Any) -> None:
    receipt, photo, charge = (app.tasks[f"shop.{name}"] for name in ("send_receipt", "resize_photo", "charge_card"))
    for order in itertools.count(1):
        receipt.delay(order, f"customer-{random.randint(1, 2000)}@example.com")
        charge.delay(order, cents=random.randint(500, 50_000))
        if order % 20 == 0:
            photo.delay(f"photo-{order}.jpg", width=random.choice((320, 1024)))
        if order % 10 == 0:
            receipt.apply_async((order, "later@example.com"), countdown=600)
        time.sleep(random.expovariate(2))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopOptions:
    nsqd: tuple[str, ...] = required("HOST:PORT to publish to and to consume from", kind=STRINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsOptions(ShopOptions):
    trouble_after: float = option(TROUBLE_AFTER, "seconds until its printer jams")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerOptions(ShopOptions):
    release: str = option("1.9", f"of its program; {BAD_RELEASE} is the bad one")
    trouble_after: float = option(TROUBLE_AFTER, "seconds until the bad release begins to fail")


def run_office(asked: ShopOptions) -> int:
    trio.run(until_signal, partial(office, asked.nsqd))
    return 0


def run_labels(asked: LabelsOptions) -> int:
    trio.run(until_signal, partial(labels, asked.nsqd, asked.trouble_after))
    return 0


def run_ledger(asked: LedgerOptions) -> int:
    trio.run(until_signal, partial(ledger, asked.nsqd, asked.trouble_after, asked.release))
    return 0


def run_tasks(asked: ShopOptions) -> int:
    app = make_tasks(asked.nsqd)
    threading.Thread(target=send_tasks, args=(app,), daemon=True).start()
    app.worker_main(["worker", "--pool=threads", "--concurrency=4", f"--queues={QUEUE}", "--loglevel=WARNING"])
    return 0


def main() -> int:
    office = Command(table=ShopOptions, run=run_office, summary="publish", about="Publishes what the others work on.")
    labels = Command(table=LabelsOptions, run=run_labels, summary="print labels", about="Prints labels, until it jams.")
    ledger = Command(table=LedgerOptions, run=run_ledger, summary="book payments", about="Books payments.")
    tasks = Command(table=ShopOptions, run=run_tasks, summary="run Celery", about="Sends and runs Celery tasks.")
    commands: Commands = {"office": office, "labels": labels, "ledger": ledger, "tasks": tasks}
    return run_one_of(commands, sys.argv[1:], "shop.py", about=__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
