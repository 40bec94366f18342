"""Which process gets which tests, where pytest-xdist runs two and more: one computes while the others wait.

All tests that share a Spark session are one group, so that there is one JVM; it is begun first, as it is the
largest. Those that start JVMs of their own have the mark `own_jvm`, which says why; files of nothing else are in
OWN_JVMS, and groups of their own. All tests of the browser are one group, too: they share a cluster under load. So are
those that install our wheels, which are built and installed once.

Tests of Spark keep the processors busy, and those of daemons and pages wait more than half of the time. Spark beside
Spark only takes its time from itself, so it runs beside tests that wait. All groups stand in one row. At its near end
are those that compute for long, at its far end those that wait. In the middle are the rules of our modules: thousands
of tests that compute, in files of a second or two; the few files that take longer stand at the far side of these. One
process takes its files from the near end, all others take theirs from the far end, and they meet among short files, so
that no process is left with a long one when the others have nothing more to do.

Among those that wait, the files of a folder are not neighbours: workers of job queues wait nearly all of the time, and
nsqadmin with hostile nodes computes, so processes that run one folder side by side would leave the processors idle,
and then be in each other's way.

xdist's own order begins with the file that has the most tests, and so ends with the files of one test of several
minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final
from zlib import crc32

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

if TYPE_CHECKING:
    import pytest

SESSION: Final = "tests/spark in one session"  # a group of many files
BROWSER: Final = "tests/browser in one cluster"  # another one
WHEELS: Final = "tests/e2e/ with one installation of our wheels"  # and another
OWN_JVMS: Final = tuple(f"tests/spark/test_{it}.py" for it in ("cluster", "terminal"))
_LONGEST_OF_PROJECT: Final = ("guard", "release", "forked", "helm", "layers")
_COMPUTING_LONGEST: Final = (
    SESSION,
    "tests/docs/test_commands.py::test_a_newcomer",
    *OWN_JVMS,
    "tests/model/",
    *(f"tests/project/test_{it}.py" for it in _LONGEST_OF_PROJECT),
    "tests/project/",
    "tests/planted/",
)
_BETWEEN: Final = ("tests/nsq", "tests/pyspark_nsq")
_LONGEST_BETWEEN: Final = (
    "tests/pyspark_nsq/source/test_reading.py",
    *(f"tests/pyspark_nsq/{it}.py" for it in ("tables/test_standing", "tables/test_upkeep", "stores/test_storage")),
    "tests/pyspark_nsq/tables/test_iceberg_destination.py",
)
_COMPUTING_AND_WAITING: Final = ("tests/fuzz/", "tests/conformance/", "tests/docs/")
_WAITING_LONGEST_LAST: Final = ("tests/e2e/", "tests/simulation/", "tests/soak/", BROWSER)
ROW: Final = (
    *_COMPUTING_LONGEST,
    *_BETWEEN,
    *_LONGEST_BETWEEN,
    *_COMPUTING_AND_WAITING,
    *_WAITING_LONGEST_LAST,
)
_WHOLE: Final = "/whole/"  # in such folders of packages most tests start processes, as those of tests/e2e do
# In these files no test shares an expensive fixture with another.
_APART: Final = ("tests/docs/test_commands.py",)
_WITH_WHEELS: Final = ("tests/e2e/test_other_projects.py", "tests/e2e/test_wheels.py")


def scope_of(test: str) -> str:
    """Return the name of the group that one process runs.

    Usually that is a file, as its tests share fixtures, but a test that takes minutes is a group of its own.
    """
    file = test.partition("::")[0]
    if file in _APART:
        return test
    if file.startswith("tests/browser/"):
        return BROWSER
    if file in _WITH_WHEELS:
        return WHEELS
    return SESSION if file.startswith("tests/spark/") and file not in OWN_JVMS else file


@cache
def place_of(scope: str) -> tuple[int, int, str]:
    """Return the group's place in the row: that of the longest beginning that its name has."""
    like = "tests/e2e/" if _WHOLE in scope else scope
    begins = [(len(begin), place) for place, begin in enumerate(ROW) if like.startswith(begin)]
    _, place = max(begins, default=(0, len(_COMPUTING_LONGEST)))
    among_others = crc32(scope.encode()) if like.startswith("tests/e2e/") else 0
    return place, among_others, scope


def shuffled(items: Sequence[pytest.Item], seed: int) -> list[pytest.Item]:
    """Return the tests in another order, which is the same in each process: files, and within each file its tests."""
    chance = Random(seed)
    of_files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        of_files.setdefault(item.path, []).append(item)
    files = list(of_files.values())
    chance.shuffle(files)
    for tests in files:
        chance.shuffle(tests)
    return [item for tests in files for item in tests]


class FromBothEnds(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {nodeid: number for number, nodeid in enumerate(self.collection)}

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Send the tests of the nearest group. xdist itself looks for the number of each in a list of all tests."""
        nearest = max if self.nodes.index(node) else min
        scope = nearest(self.workqueue, key=place_of)
        tests = self.assigned_work[node][scope] = self.workqueue.pop(scope)
        node.send_runtest_some([self._numbers[nodeid] for nodeid, is_done in tests.items() if not is_done])

    def _reschedule(self, node: WorkerController) -> None:
        """Forget groups that are done, or xdist counts all of their tests again after each test."""
        work = self.assigned_work[node]
        for scope in [scope for scope, tests in work.items() if all(tests.values())]:
            del work[scope]
        super()._reschedule(node)
