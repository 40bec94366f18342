"""What a checkout is released as: two distributions, both made of its pyproject.toml.

`tests/project/test_release.py` builds both of a small project, and `tests/e2e/test_wheels.py` installs both of ours.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.releasing.distributions import as_toml, distributions_of, stage
from tests.support.process import ROOT

TIMESTAMP: Final = 1_700_000_000
WHOLE: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CLIENT, SUITE = distributions_of(ROOT)
# What is imported by another name than it is installed by.
INSTALLED_AS: Final = {"google_crc32c": "google-crc32c"}
# Of the client's modules, the one that only an extra makes work, and the former name of a plugin of nsq-suite.
EXTRAS: Final = {"nsqclient.otel", "nsqclient.pytest_plugin"}


def packages_of(pyproject: Any) -> list[str]:
    return list(pyproject["tool"]["setuptools"]["packages"]["find"]["include"])


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(it).name) for it in requirements}


def test_each_package_of_a_checkout_is_in_one_of_them() -> None:
    client, suite = packages_of(CLIENT.pyproject), packages_of(SUITE.pyproject)
    assert sorted([*client, *suite]) == sorted(packages_of(WHOLE))
    assert client


def test_a_checkout_asks_no_index_for_a_part_of_itself() -> None:
    project = WHOLE["project"]
    needed = names(project["dependencies"]).union(*map(names, project["optional-dependencies"].values()))
    assert needed.isdisjoint({"nsqclient", "nsq-suite"})


def test_the_suite_is_the_whole_and_needs_the_client_of_its_own_version() -> None:
    whole, suite = WHOLE["project"], SUITE.pyproject["project"]
    pin = f"nsqclient=={whole['version']}"
    assert suite == {**whole, "dependencies": [*whole["dependencies"], pin]}


def test_what_the_client_has_of_the_whole_is_the_same_there() -> None:
    whole, client = WHOLE["project"], CLIENT.pyproject["project"]
    for key in ("version", "license", "license-files", "requires-python", "classifiers"):
        assert client[key] == whole[key]
    assert {*client["dependencies"]} < {*whole["dependencies"]}
    assert client["optional-dependencies"].items() < whole["optional-dependencies"].items()
    assert {"scripts", "entry-points"}.isdisjoint(client)


def test_the_client_s_dependencies_are_what_its_modules_import() -> None:
    graph = grimp.build_graph("nsqclient", "nsqcommon", include_external_packages=True, cache_dir=None)
    own = {it for it in graph.modules if it.partition(".")[0] == "nsqclient"} - EXTRAS
    reached = own.union(*(graph.find_upstream_modules(it) for it in own))
    others = {it for it in reached if graph.is_module_squashed(it)} - sys.stdlib_module_names - {"nsqpytest"}
    assert {INSTALLED_AS.get(it, it) for it in others} == names(CLIENT.pyproject["project"]["dependencies"])


def test_the_projects_are_written_as_they_were_meant(tmp_path: Path) -> None:
    for distribution in (CLIENT, SUITE):
        folder = stage(distribution, ROOT, tmp_path / distribution.name)
        assert tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8")) == distribution.pyproject


@pytest.mark.parametrize(
    "table",
    [
        {"a": {"b": 'quotes " and \\', "c d": ["ä", 1, True]}},
        {"a": {"inner": {"x": 1}, "y": 2}},
        {"authors": [{"name": "n", "email": "e"}]},
    ],
)
def test_toml_is_read_as_it_was_written(table: dict[str, Any]) -> None:
    assert tomllib.loads(as_toml(table)) == table


def test_toml_that_was_never_tried_is_refused() -> None:
    with pytest.raises(TypeError, match="None is nothing that"):
        as_toml({"a": None})
