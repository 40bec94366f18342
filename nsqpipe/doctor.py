"""`nsqpipe doctor`: reports problems that keep a pipeline from running, one line each. Doesn't start Spark."""

from __future__ import annotations

import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_nsq.failures import PipeFailed

if TYPE_CHECKING:
    from pyspark_nsq.source.queries import From
    from pyspark_nsq.stores.places import Place

JAVA_AT_LEAST: Final = 17
PYSPARK: Final = "4.3.0"
GET_PYICEBERG: Final = "pip install 'pyiceberg[sql-sqlite]>=0.12,<0.13'"


@dataclass(frozen=True, slots=True)
class Finding:
    is_good: bool
    text: str


def examine(source: From | None, places: Iterable[Place] = ()) -> Iterator[Finding]:
    """Yield the findings about this installation, these places, and the topics of the source."""
    for check in (java, spark_home, worker_python, pyspark, pyarrow, protobuf, pandas, deltalake, pyiceberg):
        yield check()
    yield from data_sources()
    for place in places:
        yield writable(place)
    if source is not None:
        yield from cluster(source)


def java(run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run) -> Finding:
    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not program or not os.path.exists(program):
        return Finding(False, f"no Java: install a JRE of {JAVA_AT_LEAST} or newer, or set JAVA_HOME")
    answer = run([program, "-version"], capture_output=True, text=True, timeout=20, check=False)
    found = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if not found:
        return Finding(False, f"{program} does not say its version")
    if int(found[1]) < JAVA_AT_LEAST:
        return Finding(False, f"Java {found[1]} at {program}: Spark 4 needs {JAVA_AT_LEAST} or newer")
    return Finding(True, f"Java {found[1]}")


def spark_home() -> Finding:
    """Check SPARK_HOME: if it is set, Spark comes from there instead of the package."""
    home = os.environ.get("SPARK_HOME")
    if not home:
        return Finding(True, "Spark comes with pyspark")
    jars = [path.stem.rpartition("-")[2] for path in Path(home, "jars").glob("spark-core_*.jar")]
    if jars != [PYSPARK]:
        found = f"Spark {', '.join(jars)}" if jars else "no Spark"
        return Finding(False, f"SPARK_HOME is {home}, with {found}: unset it, or name one with {PYSPARK}")
    return Finding(True, f"Spark {PYSPARK} at {home}")


def worker_python() -> Finding:
    given = os.environ.get("PYSPARK_PYTHON")
    if given and shutil.which(given) is None:
        return Finding(False, f"PYSPARK_PYTHON is {given}, which is not a program here")
    return Finding(True, f"workers run {given or sys.executable}")


def pyspark() -> Finding:
    here = _version("pyspark")
    if here is None:
        return Finding(False, f"no pyspark: pip install pyspark=={PYSPARK}")
    if here != PYSPARK:
        return Finding(
            False, f"pyspark {here}: its API for sources in Python is new; only {PYSPARK} was tested with ours"
        )
    return Finding(True, f"pyspark {here}, Python {sys.version.split()[0]}")


def protobuf() -> Finding:
    here = _version("protobuf")
    if here is None:
        return Finding(False, "no protobuf: transformWithState crashes without it; pip install protobuf")
    return Finding(True, f"protobuf {here}")


def pandas() -> Finding:
    here = _version("pandas")
    if here is None:
        return Finding(False, "no pandas: aggregate and decoders cannot run; pip install 'pandas>=2.2,<3'")
    if not (2, 2) <= tuple(map(int, here.split(".")[:2])) < (3,):
        return Finding(False, f"pandas {here}: Spark needs 2.2 or newer, and less than 3; pip install 'pandas>=2.2,<3'")
    return Finding(True, f"pandas {here}")


def pyarrow() -> Finding:
    here = _version("pyarrow")
    if here is None:
        return Finding(False, "no pyarrow: the source cannot make rows; pip install pyarrow")
    return Finding(True, f"pyarrow {here}")


def deltalake() -> Finding:
    here = _version("deltalake")
    if here is None:
        return Finding(False, "no deltalake: tables can only be Parquet; pip install deltalake")
    return Finding(True, f"deltalake {here}")


def pyiceberg() -> Finding:
    here = _version("pyiceberg")
    if here is None:
        return Finding(True, f"no pyiceberg, which only `land --format iceberg` needs: {GET_PYICEBERG}")
    if tuple(map(int, here.split(".")[:2])) != (0, 12):
        return Finding(False, f"pyiceberg {here}: landing was only tested with 0.12; {GET_PYICEBERG}")
    return Finding(True, f"pyiceberg {here}")


def data_sources() -> Iterator[Finding]:
    """Check that Spark can find our sources.

    Spark imports every top-level module whose name begins with `pyspark_` and asks it for its `DefaultSource`, which
    may import more. If one of them fails, Spark finds none.
    """
    broken = False
    for module in pkgutil.iter_modules():
        if module.name.startswith("pyspark_"):
            try:
                getattr(import_module(module.name), "DefaultSource", None)
            except Exception as error:
                broken = True
                where = getattr(module.module_finder, "path", "sys.path")
                yield Finding(
                    False, f"module {module.name} in {where} cannot be imported ({error}): Spark will find no nsq"
                )
    if find_spec("pyspark_nsq") is None:
        yield Finding(False, "pyspark_nsq is not installed here")
    elif not broken:
        yield Finding(True, "format('nsq') and format('nsqtable') can be found")


def writable(place: Place) -> Finding:
    from pyspark_nsq.stores.storage import check_place  # imports pyarrow, which may be missing

    try:
        check_place(place, to_write=True)
    except PipeFailed as error:
        return Finding(False, str(error))
    return Finding(True, f"{place} can be reached and written")


def cluster(source: From) -> Iterator[Finding]:
    """Report on each topic at each node, and on topics that no node has. A bad finding does not hide others."""
    try:
        from nsqpipe.lag import cluster_of  # imports pyspark, which may be missing
        from pyspark_nsq.cluster import no_retention_text
        from pyspark_nsq.errors import NsqError, Unreachable
        from pyspark_nsq.lanes import Head
    except ImportError as error:
        yield Finding(False, f"nsqd are not asked: {error}")
        return
    here = cluster_of(source)
    down: list[Unreachable] = []
    try:
        places = here.places(left_out=down)
    except NsqError as error:
        yield Finding(False, str(error))
        return
    heads, failed = [], {str(failure) for failure in down}
    for place in places:
        try:
            head = here.head(place)
        except NsqError as error:
            failed.add(str(error))
            continue
        if isinstance(head, Head):
            heads.append(head)
            text = f"{head.lane}: sequences {head.first} to {head.next} at {head.address}"
            yield Finding(head.kept, text if head.kept else no_retention_text(head))
    for text in sorted(failed):
        yield Finding(False, text)
    try:
        here.check_found(heads)
    except NsqError as error:
        if not failed:
            yield Finding(False, str(error))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
