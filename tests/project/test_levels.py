"""Which tests get the mark `process`: those that start one in any way."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from subprocess import run
from unittest.mock import Mock

import pytest

from nsqd.workers.worker_process import WorkerProcess
from tests.support import process
from tests.support.brokers import StartNsqd
from tests.support.levels import levels, starts_process
from tests.support.process import ROOT, Nsqd, Nsqlookupd


def calls_it() -> None:
    subprocess.run(["true"], check=True)


def calls_it_by_its_name() -> None:
    run(["true"], check=True)


def names_who_does() -> None:
    calls_it()


def in_a_function_of_its_own() -> None:
    def inner() -> None:
        calls_it()

    inner()


@contextmanager
def as_a_context() -> Iterator[None]:
    calls_it()
    yield


def by_a_module() -> None:
    process.run_to_end("nsqd")


def by_a_class() -> None:
    with Nsqlookupd():
        pass


def by_a_module_in_a_module() -> object:
    return asyncio.subprocess.create_subprocess_exec("true")


def by_what_it_hands_on() -> object:
    return partial(process.run_to_end, "nsqd")


def by_the_supervisor_of_nsqd() -> None:
    WorkerProcess(0, ["true"], lambda: None)


class Server:
    def start(self) -> None:
        calls_it()


class Derived(Server):
    pass


def only_asks_for_errors() -> type[Exception]:
    return subprocess.TimeoutExpired


class Thing:
    calls_it = run = run_to_end = 0


def has_attributes_of_the_same_names(thing: Thing) -> tuple[object, ...]:
    return process, subprocess, thing.calls_it, thing.run, thing.run_to_end


def has_attributes_of_those_names_itself() -> object:
    return Thing.calls_it


def calls_nothing() -> int:
    return len("")


def calls_nothing_and_then_it() -> None:
    calls_nothing()
    calls_it()


@pytest.mark.parametrize(
    "thing",
    [
        calls_it,
        calls_it_by_its_name,
        names_who_does,
        in_a_function_of_its_own,
        as_a_context,
        by_a_module,
        by_a_module_in_a_module,
        by_what_it_hands_on,
        by_a_class,
        by_the_supervisor_of_nsqd,
        Derived,
        partial(calls_it),
        Nsqd,
    ],
)
def test_what_starts_a_process_in_any_way_is_found(thing: object) -> None:
    assert starts_process(thing)


@pytest.mark.parametrize(
    "thing",
    [
        only_asks_for_errors,
        has_attributes_of_the_same_names,
        has_attributes_of_those_names_itself,
        calls_nothing,
        1,
        "calls_it",
        None,
        int,
    ],
)
def test_what_starts_none_is_left_alone(thing: object) -> None:
    assert not starts_process(thing)


def test_a_helper_that_starts_none_hides_nothing_of_who_names_it() -> None:
    assert not starts_process(calls_nothing)
    assert starts_process(calls_nothing_and_then_it)
    assert starts_process(calls_nothing, calls_it)


def test_a_test_has_the_mark_of_its_fixtures(request: pytest.FixtureRequest, start_nsqd: StartNsqd) -> None:
    assert "process" in levels(request.node)


def test_a_test_that_uses_nothing_of_the_kind_has_no_mark(request: pytest.FixtureRequest) -> None:
    assert [*levels(request.node)] == []


@pytest.fixture
def starts_nothing() -> int:
    return calls_nothing()


@pytest.fixture
def starts_one() -> None:
    calls_it()


@pytest.fixture(params=["starts_nothing", "starts_one"])
def either(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue(request.param)
    return str(request.param)


def test_a_fixture_counts_that_a_test_asks_for_while_it_runs(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("starts_one")
    assert "process" in levels(request.node)


def test_of_two_fixtures_the_one_counts_that_the_parameter_names(request: pytest.FixtureRequest, either: str) -> None:
    assert ("process" in levels(request.node)) == (either == "starts_one")


@pytest.mark.parametrize(("expression", "marked"), [("", False), ("not process", True)])
def test_tests_are_marked_if_somebody_asks_for_marks(
    request: pytest.FixtureRequest, start_nsqd: StartNsqd, expression: str, marked: bool
) -> None:
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "tests/conftest.py"))
    assert conftest is not None
    config = Mock(getoption={"markexpr": expression, "--shuffle": None}.__getitem__)
    request.node.own_markers[:] = [it for it in request.node.own_markers if it.name != "process"]
    conftest.pytest_collection_modifyitems(config, [request.node])
    assert (request.node.get_closest_marker("process") is not None) == marked
