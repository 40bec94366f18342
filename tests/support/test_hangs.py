"""A test that hangs ends its process, which says where it hung."""

from __future__ import annotations

import signal

import pytest

from tests.support import hangs
from tests.support.process import ROOT

CONFTEST = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "common")!r}]
from tests.conftest import pytest_runtest_protocol
"""
HANGS = "import signal, time\ndef test_that_hangs(): time.sleep(100)\n"


def run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, limit: str, test: str, more: str = ""
) -> pytest.RunResult:
    monkeypatch.setenv(hangs.VARIABLE, limit)
    pytester.makeconftest(CONFTEST + more)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", pytester.makepyfile(test), timeout=60)


def test_a_test_that_hangs_ends_the_process_and_is_named_even_after_one_that_took_the_signal(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes = "def test_that_takes_it(): signal.signal(signal.SIGALRM, lambda *_: None)\n"
    done = run(pytester, monkeypatch, "3", "import signal\n" + takes + HANGS)
    assert done.ret == -signal.SIGALRM
    done.stderr.fnmatch_lines("*in test_that_hangs")


def test_a_test_whose_teardown_has_failed_has_no_limit_any_more(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = """
        import signal
        import pytest
        @pytest.fixture
        def limited():
            assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
            yield
            raise ValueError
        def test_it(limited):
            pass
    """
    shows = "\nimport signal\ndef pytest_sessionfinish(): print('left', signal.getitimer(signal.ITIMER_REAL)[0])\n"
    done = run(pytester, monkeypatch, "300", test, shows)
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines("*left 0.0")
