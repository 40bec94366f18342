"""No module needs itself, over however many others, not even for its types."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

PACKAGES = (
    "nsqcommon",
    "nsqd",
    "nsqlookupd",
    "nsqadmin",
    "nsqclient",
    "nsqjobs",
    "nsqtools",
    "pyspark_nsq",
    "pyspark_nsqtable",
    "nsqpipe",
    "nsqpytest",
)


def check(imports: dict[str, set[str]]) -> None:
    """Raise CycleError, which names the modules, if there is a circle."""
    TopologicalSorter(imports).prepare()


def test_no_module_needs_itself() -> None:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert "nsqd.broker.channel" in imports["nsqd.broker.topic"], "imports were read in vain"
    check(imports)


def test_a_circle_is_found() -> None:
    with pytest.raises(CycleError):
        check({"a": {"b"}, "b": {"c"}, "c": {"a"}})
