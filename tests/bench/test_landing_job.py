"""The landing that is measured runs on older checkouts as well, whose modules had other names."""

from __future__ import annotations

import runpy
import sys
from importlib import import_module

import pytest

from bench.work import HERE

pytestmark = pytest.mark.needs("pyspark", "pyarrow")

BEFORE = {
    "nsqpipe.kinds": "pyspark_nsq.kinds",
    "nsqpipe.sources": "pyspark_nsq.source.queries",
    "nsqpipe.tables": "pyspark_nsq.tables.table",
}


def test_it_finds_modules_where_an_older_checkout_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "nsqpipe.decoders",
        "nsqpipe.land",
        "nsqpipe.session",
    ):  # they import others by the names of this checkout
        import_module(name)
    modules = {before: import_module(now) for before, now in BEFORE.items()}
    for before, now in BEFORE.items():
        monkeypatch.setitem(sys.modules, now, None)
        monkeypatch.setitem(sys.modules, before, modules[before])
    found = runpy.run_path(str(HERE / "landing_job.py"))
    assert [found[it] for it in ("kinds", "queries", "tables")] == list(modules.values())
