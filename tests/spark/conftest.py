"""One Spark session for all tests in here: it takes ten seconds to start, and one process gets all of these tests.

Which process that is: `tests/support/distribution.py`. A test that starts a JVM of its own says why by the mark
`own_jvm`; without the mark it finds no Java.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.kept import no_other_jvm, node, nsqd, orders
from tests.support.py4j_names import names_kept
from tests.support.spark_session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["no_other_jvm", "node", "nsqd", "orders", "spark"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with names_kept(), spark_session(tmp_path_factory.mktemp("spark") / "warehouse") as session:
        yield session
