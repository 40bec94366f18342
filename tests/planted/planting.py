"""Plants a bug of the table into this process, or into those that a test starts.

The code of each function of the changed file is replaced, so that nobody has to import anything anew, and what was
imported before has the bug as well. `scripts/test-planted` changes the file itself, in a copy of the sources.
"""

from __future__ import annotations

import dis
import importlib
import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from tests.planted.table import BUGS, DEATHS, STOPS, Bug
from tests.support.process import PYTHONPATH, ROOT

NAME: Final = "NSQ_PLANTED"  # of the variable that names the bug, or several with a semicolon between
_NOTES: Final = ("__firstlineno__", "__static_attributes__")  # from Python 3.13 on, each class has these
_AT_START: Final = Path(__file__).with_name("at_start")


class DoesNotFit(AssertionError):
    """The file is not as the table says: the bug has to be written anew."""


def bug_named(name: str) -> Bug:
    return next(bug for bug in (*BUGS, *DEATHS, *STOPS) if bug.name == name)


def bugs_for(suite: str) -> list[str]:
    """Return the names of the bugs that a suite has to find."""
    return [bug.name for bug in BUGS if suite in bug.suites]


def changed(source: str, bug: Bug) -> str:
    """Return a file's text with the bug. Raise DoesNotFit if it does not have each place exactly once."""
    for old, new in bug.edits:
        if (found := source.count(old)) != 1:
            raise DoesNotFit(f"{bug.name}: {bug.file} has this {found} times instead of once:\n{old}")
        source = source.replace(old, new)
    return source


def module_of(bug: Bug) -> str:
    return bug.file.removeprefix("common/").removesuffix(".py").replace("/", ".")


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Have this process run with the bug."""
    former = plant(bug_named(name))
    try:
        yield
    finally:
        for function, code in former:
            function.__code__ = code


def with_bug(*names: str) -> Mapping[str, str]:
    """Return the environment for a program that has these bugs. This works only with the pure Python core."""
    asked = ";".join(bug_named(name).name for name in names)
    return {"PYTHONPATH": os.pathsep.join((str(_AT_START), PYTHONPATH)), NAME: asked}


def plant(bug: Bug) -> list[tuple[FunctionType, CodeType]]:
    """Change this process. Return the functions that were changed, with their former code."""
    module = importlib.import_module(module_of(bug))
    source = (ROOT / bug.file).read_text(encoding="utf-8")
    before, after = _codes_of(source, bug.file), _codes_in(compile(changed(source, bug), bug.file, "exec"))
    wanted = {name: code for name, code in after.items() if not _is_same(code, before.get(name))}
    former = [(it, it.__code__) for it in _functions_of(module) if it.__qualname__ in wanted]
    if missing := wanted.keys() - {function.__qualname__ for function, _ in former}:
        raise DoesNotFit(f"{bug.name}: nothing can be planted at {', '.join(sorted(missing))}; is it compiled?")
    for function, _ in former:
        function.__code__ = wanted[function.__qualname__]
    return former


@lru_cache(maxsize=8)
def _codes_of(source: str, file: str) -> dict[str, CodeType]:
    return _codes_in(compile(source, file, "exec"))


def _codes_in(code: CodeType) -> dict[str, CodeType]:
    """Return the code of a module, and of the functions of it and of its classes, by name."""
    found = {code.co_qualname: code}
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and "<locals>" not in constant.co_qualname:
            found |= _codes_in(constant)
    return found


def _is_same(one: CodeType, other: CodeType | None) -> bool:
    """Return whether two codes do the same, wherever they stand. What a function has within itself is a part of it."""
    if other is None:
        return False
    if not one.co_flags & inspect.CO_OPTIMIZED:  # of a class or a module
        return _steps_of(one) == _steps_of(other)
    if (one.co_code, one.co_names) != (other.co_code, other.co_names):
        return False
    if len(one.co_consts) != len(other.co_consts):
        return False
    for mine, its in zip(one.co_consts, other.co_consts, strict=True):
        if isinstance(mine, CodeType) and isinstance(its, CodeType):
            if "<locals>" in mine.co_qualname and not _is_same(mine, its):
                return False
        elif (type(mine), mine) != (type(its), its):
            return False
    return True


def _steps_of(code: CodeType) -> list[tuple[object, ...]]:
    """Return what the code of a class does, without what Python notes there of its line and of what its methods set."""
    values = [(it.opname, it.argval) for it in dis.get_instructions(code)]
    steps = [(name, type(it), it.co_qualname if isinstance(it, CodeType) else it) for name, it in values]
    notes = {at for at, (_, value) in enumerate(values) if value in _NOTES}  # and the value is loaded just before
    return [step for at, step in enumerate(steps) if notes.isdisjoint((at, at + 1))]


def _functions_of(owner: ModuleType | type) -> Iterator[FunctionType]:
    """Yield the functions that are written in a module or class."""
    for found in list(vars(owner).values()):
        if isinstance(found, type) and found.__module__ == _module_name(owner):
            yield from _functions_of(found)
        for part in _parts_of(found):
            part = inspect.unwrap(part)
            if isinstance(part, FunctionType) and part.__module__ == _module_name(owner):
                yield part


def _parts_of(found: Any) -> list[Any]:
    if isinstance(found, property):
        return [part for part in (found.fget, found.fset) if part is not None]
    if isinstance(found, staticmethod | classmethod):
        return [found.__func__]
    return [found] if callable(found) and not isinstance(found, type) else []


def _module_name(owner: ModuleType | type) -> str:
    return owner.__module__ if isinstance(owner, type) else owner.__name__
