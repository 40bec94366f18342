"""Names of Java that are looked up once.

PySpark writes `jvm.org.apache.spark.sql.Name`, and py4j asks the JVM about each part of it, each time: is it a class?
For a part that is a package, and for a class that Spark has imported by a `*`, the JVM looks into 280 jars. That was a
seventh of what the JVM did in these tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def names_kept() -> Iterator[None]:
    from py4j.java_gateway import JavaClass, JavaPackage, JVMView  # type: ignore[import-untyped]

    def keeping(look: Any) -> Any:
        def find(self: Any, name: str) -> Any:
            found = look(self, name)
            if isinstance(found, (JavaClass, JavaPackage)):
                self.__dict__[name] = found
            return found

        return find

    with ExitStack() as stack:
        for kind in (JavaPackage, JVMView):
            stack.enter_context(patch.object(kind, "__getattr__", keeping(kind.__getattr__)))
        yield
