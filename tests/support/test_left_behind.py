"""A test fails that leaves something behind which changes the tests after it."""

from __future__ import annotations

import pytest

from tests.support.process import ROOT

CONFTEST = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "common")!r}]
from tests.conftest import pytest_runtest_setup, pytest_runtest_teardown
"""
TESTS = """
import logging, signal
def test_level(): logging.getLogger("nsqd").setLevel(logging.INFO)
def test_that_it_is_as_before(): assert logging.getLogger("nsqd").level == logging.NOTSET
def test_signal(): signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
def test_that_it_is_not_blocked(): assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""


def test_a_log_level_and_a_blocked_signal_are_found_and_end_with_their_test(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", pytester.makepyfile(TESTS), timeout=60)
    done.assert_outcomes(passed=4, errors=2)
    done.stdout.fnmatch_lines(["*ERROR at teardown of test_level*", "*ERROR at teardown of test_signal*"])
