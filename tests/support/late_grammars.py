"""Imports what checks schemas without its grammars, which take more time than all else that it does.

`jsonschema` knows addresses by `rfc3987_syntax`, which makes 39 parsers when it is imported, in 1.6 s. Few are ever used,
so here each reads its grammar when it is asked for the first time.

    with late_grammars():
        from jsonschema import Draft202012Validator
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from unittest.mock import patch


@contextmanager
def late_grammars() -> Iterator[None]:
    try:
        import lark
    except ImportError:  # then jsonschema does without
        yield
        return
    make = lark.Lark

    class Late:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._arguments, self._options = arguments, options

        @cached_property
        def _parser(self) -> Any:
            return make(*self._arguments, **self._options)

        def parse(self, *arguments: Any, **options: Any) -> Any:
            return self._parser.parse(*arguments, **options)

    with patch.object(lark, "Lark", Late):
        yield
