"""Which tests start what: the marks `process`, `spark` and `browser` follow from what a test uses.

A test starts a process if its code does, or a fixture of it, or a helper that one of them names, and so on through our
own helpers. What the product starts by itself is not looked into, but for the class in nsqd that starts its workers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dis import get_instructions
from functools import cache, partial
from types import CodeType, FunctionType, ModuleType
from typing import Final

import pytest

_OURS: Final = ("tests.", "bench.", "scripts.")
_STARTS: Final = frozenset(
    {
        "asyncio.create_subprocess_exec",
        "asyncio.subprocess.create_subprocess_exec",
        "nsqd.workers.worker_process.WorkerProcess",
        "os.fork",
        "subprocess.Popen",
        "subprocess.call",
        "subprocess.check_call",
        "subprocess.check_output",
        "subprocess.run",
        "trio.open_process",
        "trio.run_process",
    }
)
_GLOBALS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_BETWEEN: Final = frozenset({"EXTENDED_ARG", "PUSH_NULL"})  # what may stand between a global and its attribute
_NO_MATTER: Final = frozenset(
    {
        "tests.nsqd.http.whole.test_turns.in_a_fork",  # only so that what it changes stays as it was
        "tests.support.certificates.make_certificates",  # runs openssl before the test, which is about sockets
    }
)


def levels(item: pytest.Item) -> Iterator[str]:
    fixtures = set(getattr(item, "fixturenames", ()))
    if "chromium" in fixtures:
        yield "browser"
    if "spark" in fixtures or item.get_closest_marker("own_jvm") is not None:
        yield "spark"
    if isinstance(item, pytest.Function) and starts_process(*_used_by(item)):
        yield "process"


def _used_by(item: pytest.Function) -> Iterator[object]:
    """Yield the test's function, those of its fixtures, and its parameters, which may be classes of daemons."""
    parameters = [*item.callspec.params.values()] if hasattr(item, "callspec") else []
    functions = [getattr(getattr(item.obj, "hypothesis", None), "inner_test", item.obj)]
    for name, fixtures in item._fixtureinfo.name2fixturedefs.items():
        functions += _nearest(name, fixtures)
    for function in functions:  # which grow by the fixtures that they ask for
        if (words := _words(function)) is not None:
            for name in (*words, *(it for it in parameters if isinstance(it, str))):
                functions += [it for it in _nearest(name, _fixtures(name, item)) if it not in functions]
    yield from functions
    yield from parameters


def _nearest(name: str, fixtures: Sequence[pytest.FixtureDef[object]]) -> Iterator[Callable[..., object]]:
    for fixture in reversed(fixtures):  # the nearest comes last, and takes the place of the others
        yield fixture.func
        if name not in fixture.argnames:
            break


def _fixtures(name: str, item: pytest.Function) -> Sequence[pytest.FixtureDef[object]]:
    return item.session._fixturemanager.getfixturedefs(name, item) or ()


@cache
def _words(function: Callable[..., object]) -> tuple[str, ...] | None:
    """Return the texts in a function that asks for fixtures by `request.getfixturevalue`; None if it does not."""
    codes = [*_codes(inspect.unwrap(function).__code__)]
    if not any("getfixturevalue" in code.co_names for code in codes):
        return None
    return tuple(it for code in codes for it in code.co_consts if isinstance(it, str))


def starts_process(*things: object) -> bool:
    """Return whether one of these functions and classes starts a process, or names something of ours that does."""
    functions = [function for thing in things for function in _functions_of(thing) if _may_start.finds(function)]
    return any(map(_starts.finds, reversed(functions)))  # first the fixtures, which many tests share


def _functions_of(thing: object) -> Iterator[FunctionType]:
    """Yield the function that a name stands for, or the methods of a class; nothing if it is not ours."""
    if isinstance(thing, partial):
        thing = thing.func
    thing = inspect.unwrap(getattr(thing, "__func__", thing)) if callable(thing) else getattr(thing, "fget", thing)
    if isinstance(thing, FunctionType) and thing.__module__.startswith(_OURS):
        if f"{thing.__module__}.{thing.__name__}" not in _NO_MATTER:
            yield thing
    elif isinstance(thing, type) and thing.__module__.startswith(_OURS):
        for base in thing.__mro__:
            if base.__module__.startswith(_OURS):
                for method in vars(base).values():
                    if not isinstance(method, type):
                        yield from _functions_of(method)


class _Search:
    """Follows what functions of ours name, until one starts a process."""

    def __init__(
        self,
        named: Callable[[CodeType, Mapping[str, object]], Iterator[tuple[str, object]]],
        suspects: Callable[[FunctionType], bool] = lambda _: True,
    ) -> None:
        self._named = named
        self._suspects = suspects
        self._found: dict[FunctionType, bool] = {}
        self._harmless: set[FunctionType] = set()  # what starts none, because ten thousand tests name the same helpers
        self._what_it_does = cache(self._look)

    def finds(self, function: FunctionType) -> bool:
        if (found := self._found.get(function)) is None:
            found = self._found[function] = self._follow(function)
        return found

    def _follow(self, function: FunctionType) -> bool:
        to_look_at = [function]
        seen: set[FunctionType] = set()
        while to_look_at:
            one = to_look_at.pop()
            if one not in seen and one not in self._harmless and self._suspects(one):
                seen.add(one)
                starts, named = self._what_it_does(one)
                if starts:
                    return True
                to_look_at += named
        self._harmless.update(seen)
        return False

    def _look(self, function: FunctionType) -> tuple[bool, tuple[FunctionType, ...]]:
        """Return whether it starts a process itself, and which functions of ours it names."""
        named: list[object] = []
        for code in _codes(function.__code__):
            for place, thing in self._named(code, function.__globals__):
                if (
                    place in _STARTS
                    or f"{getattr(thing, '__module__', '')}.{getattr(thing, '__name__', '')}" in _STARTS
                ):
                    return True, ()
                named.append(thing)
            if "runpytest_subprocess" in code.co_names:  # of the fixture pytester
                return True, ()
        return False, tuple(it for thing in named if callable(thing) for it in _functions_of(thing))


def _perhaps_named(code: CodeType, names: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield what `_named` does, and more: an attribute of anything counts as the global of the same name.

    It takes a fifth of the time, and tells of most tests that they start nothing.
    """
    for name in code.co_names:
        if isinstance(thing := names.get(name), ModuleType):
            is_ours = thing.__name__.startswith(_OURS)
            for it in code.co_names:
                yield f"{thing.__name__}.{it}", getattr(thing, it, None) if is_ours else None
        elif thing is not None:
            yield "", thing


def _named(code: CodeType, names: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield each global that it loads, and what it takes from a module; the name in that module, and the thing.

    An attribute of anything else, such as `request.node`, has nothing to do with a global of the same name.
    """
    thing: object = None
    for step in get_instructions(code):
        if step.opname in _GLOBALS:
            thing = names.get(step.argval)
            yield "", thing
        elif step.opname in _ATTRIBUTES and isinstance(thing, ModuleType):
            place, thing = f"{thing.__name__}.{step.argval}", getattr(thing, step.argval, None)
            yield place, thing
        elif step.opname not in _BETWEEN:
            thing = None


_may_start: Final = _Search(_perhaps_named)
_starts: Final = _Search(_named, _may_start.finds)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of those within it."""
    yield code
    for it in code.co_consts:
        if isinstance(it, CodeType):
            yield from _codes(it)
