"""Where tests are: those of a module in the folder of its room, under its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
TESTS: Final = ROOT / "tests"
# Its tests are in one folder: rooms/module.py has test_module.py, or test_rooms_module.py where another room has a
# module of that name.
FLAT: Final = ("bench",)
BESIDE: Final = frozenset(
    {
        *(
            "browser",
            "conformance",
            "docs",
            "e2e",
            "failover",
            "fuzz",
            "long",
            "model",
            "original",
            "planted",
            "project",
        ),
        *("simulation", "soak", "spark", "support"),
    }
)
WHOLE: Final = "whole"  # the folder for rules that several modules of a package or room keep together


def source_of(package: str) -> Path:
    return next(it for it in (ROOT / package, ROOT / "common" / package) if it.is_dir())


def packages() -> list[str]:
    there = {it.parent.name for top in (ROOT, ROOT / "common") for it in top.glob("*/__init__.py")}
    return sorted({*there, "bench"} & {it.name for it in TESTS.iterdir()})


def modules(package: str, *rooms: str) -> Iterator[str]:
    """Yield the names that a module or a room may have in the name of its test, and the room's own."""
    folder = source_of(package).joinpath(*rooms)
    yield folder.name
    for path in folder.rglob("*.py") if package in FLAT else folder.glob("*"):
        parts = [it.lstrip("_") for it in path.relative_to(folder).with_suffix("").parts if it != "__init__"]
        yield from ("_".join(parts[start:]) for start in range(len(parts)))


def has_module(test: Path) -> bool:
    """Return whether test_<module>.py, or test_<module>_<what>.py, has a module in its room."""
    package, *rooms, name = test.relative_to(TESTS).with_suffix("").parts
    words = name.removeprefix("test_").split("_")
    known = {*modules(package, *rooms)}
    return any("_".join(words[:end]) in known for end in range(1, len(words) + 1))


def files(package: str) -> list[Path]:
    return [it for it in sorted((TESTS / package).rglob("test_*.py")) if it.parent.name != WHOLE]


@pytest.mark.parametrize("package", packages())
def test_a_file_of_tests_has_its_module(package: str) -> None:
    without = [str(it.relative_to(ROOT)) for it in files(package) if not has_module(it)]
    assert without == [], f"name it after its module, or, if it tests several of them, put it into {WHOLE}/"


def test_all_packages_are_looked_at() -> None:
    assert {"bench", "nsqadmin", "nsqclient", "nsqcommon", "nsqd", "nsqjobs", "nsqlookupd", "nsqpipe"} <= {*packages()}
    assert len([file for package in packages() for file in files(package)]) > 200


def test_no_other_folder_has_tests() -> None:
    """Levels are marks: there is no tests/unit."""
    assert {it.relative_to(TESTS).parts[0] for it in TESTS.glob("*/**/test_*.py")} <= {*packages(), *BESIDE}


@pytest.mark.parametrize("package", packages())
def test_rooms_of_tests_are_rooms_of_the_package(package: str) -> None:
    folders = {it.parent.relative_to(TESTS / package) for it in (TESTS / package).rglob("test_*.py")}
    rooms = {it.parent if it.name == WHOLE else it for it in folders}
    assert [str(it) for it in rooms if not (source_of(package) / it).is_dir()] == []
    assert package not in FLAT or rooms == {Path()}


@pytest.mark.parametrize(
    ("test", "is_there"),
    [
        ("nsqd/broker/test_channel.py", True),
        ("nsqd/broker/test_channel_of_many.py", True),
        ("nsqd/broker/test_chann.py", False),
        ("nsqd/test_channel.py", False),
        ("nsqd/log/journal/test_journal.py", True),
        ("nsqclient/shell/test_consumer.py", True),
        ("nsqadmin/parts/test_readers.py", True),
        ("nsqadmin/test_readers.py", False),
        ("bench/test_jobs_rates.py", True),
        ("bench/test_rates.py", True),
        ("bench/test_jabs_rates.py", False),
    ],
)
def test_a_name_that_no_module_has_is_found(test: str, is_there: bool) -> None:
    assert has_module(TESTS / test) == is_there
