"""`python -m bench all --quick` has a quick form of every benchmark, which its command line accepts."""

from __future__ import annotations

import argparse

import pytest

from bench.__main__ import BENCHMARKS
from bench.everything import QUICK


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_a_quick_form(name: str) -> None:
    parser = argparse.ArgumentParser()
    BENCHMARKS[name].add_arguments(parser)
    assert vars(parser.parse_args(QUICK[name])) != vars(parser.parse_args([]))
