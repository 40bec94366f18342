"""An hour with real nodes on a steered clock: whatever happens at the same time, no verdict improves."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from threading import Timer

from tests.nsqadmin.scenario import HOUR, run_drawn, run_in, run_simulated
from tests.nsqadmin.steered_world import Consumer, Publisher, World
from tests.nsqadmin.verdicts import Verdicts
from tests.support.process import needs_module

needs_module("starlette")

JOBS = 50
RUN_TIME = 1800.0  # seconds
LONG = 8.0  # seconds, more than nsqadmin's patience with a node


def test_no_verdict_improves_and_no_incident_disappears_before_its_cause_is_gone(tmp_path: Path) -> None:
    assert run_in(tmp_path, HOUR, tick=15.0) == []


def test_no_verdict_improves_in_a_simulated_hour_with_restarts_deploys_and_an_old_node() -> None:
    """The long form draws others, and longer ones: `scripts/test-long verdicts`."""
    assert run_drawn(1, minutes=60, tick=20.0) == []


def test_a_node_that_takes_long_for_its_first_answer_is_not_accused(tmp_path: Path) -> None:
    """As on a busy machine. nsqadmin asks for the first time before any time has passed in the world."""
    with ExitStack() as stack:
        world = World(tmp_path, stack, 1, tick=20.0)
        verdicts = Verdicts(world)
        slow = world.nodes[0].daemon
        slow.send_signal(SIGSTOP)
        Timer(LONG, slow.send_signal, [SIGCONT]).start()
        world.run(partial(world.pass_time, 60))
        assert verdicts.failures() == []


def test_a_restart_while_a_node_is_silent_accuses_no_other_node() -> None:
    """The file of the silent node was forgotten, so two of three files were in a tie."""
    steps = ((3, "1 differs"), (6, "3 hangs"), (7, "nsqadmin restarts"), (12, "3 back"), (14, "1 differs over"))
    assert run_simulated((*steps, (18, "the end")), tick=20.0) == []


def test_a_healthy_hour_has_no_incident_nor_have_jobs_of_half_an_hour_whose_worker_touches_them(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack, 2, tick=20.0)
        world.nodes[1].is_old = True
        verdicts = Verdicts(world)
        workers = Consumer(world.nodes, "celery", "jobs", ready=JOBS // 2, takes=RUN_TIME, touches=True)
        world.actors += [
            Publisher(world.nodes, "orders", 5),
            Consumer(world.nodes, "orders", "billing"),
            workers,
        ]

        async def an_hour() -> None:
            await world.pass_time(60)
            for node in world.nodes:  # so many that some wait all the time
                node.daemon.post("/mpub?topic=celery", b"\n".join(b"job %d" % number for number in range(JOBS)))
            await world.pass_time(62 * 60)

        world.run(an_hour)
        assert verdicts.failures() == []
        assert workers.finished == 2 * JOBS
        assert world.changes == []
