"""The docstring of a public function begins with a verb, in the imperative: "Return", "Refuse", "Move".

Properties are left out: they are read as nouns. So are classes and modules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import ROOT

PACKAGES = (
    "bench",
    "common",
    "nsqadmin",
    "nsqclient",
    "nsqd",
    "nsqlookupd",
    "nsqpipe",
    "nsqjobs",
    "nsqpytest",
    "nsqtools",
    "pyspark_nsq",
    "pyspark_nsqtable",
    "scripts",
)
# First words of sentences that lean on the function's name instead of saying what the function does.
NOT_VERBS = """
a about acknowledged after all allocated also always an and another any anything are as at because before beyond both
by bytes called can each either every everything exactly false few for from go has how idempotent idle if in is it its
just like more most names never next no nobody none not nothing null of on once one only other our out over per ready
rounded same seconds settled should so some somebody someone something spark ten text than that the their them then
there these they this those to true two until up what when where whether which while who whoever whole whom whose why
with within without yes
"""
NO_VERBS = frozenset(NOT_VERBS.split())
WORD = re.compile("[A-Z][a-z]+(-[a-z]+)?")
IN_S = "access address compress cross decompress discuss dismiss express focus guess miss pass press process"
VERBS_IN_S = frozenset(IN_S.split())


def documented_functions(module: ast.Module) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    """Yield each public function that has a docstring, with the docstring."""
    bodies = [module.body, *(it.body for it in ast.walk(module) if isinstance(it, ast.ClassDef))]
    for it in (statement for body in bodies for statement in body):
        if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef) and not it.name.startswith("_"):
            text = ast.get_docstring(it)
            if text and not any("property" in ast.unparse(decorator) for decorator in it.decorator_list):
                yield it, text


def is_imperative(text: str) -> bool:
    first = text.split()[0].strip(".,:;")
    word = first.lower()
    return bool(WORD.fullmatch(first)) and word not in NO_VERBS and (not word.endswith("s") or word in VERBS_IN_S)


def complaints(path: Path) -> list[str]:
    module = ast.parse(path.read_text(encoding="utf-8"))
    return [
        f"{path.relative_to(ROOT)}:{function.lineno}: {function.name}: {text.splitlines()[0]}"
        for function, text in documented_functions(module)
        if not is_imperative(text)
    ]


def test_a_docstring_begins_with_a_verb() -> None:
    modules = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert [line for path in modules for line in complaints(path)] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Return it.", True),
        ("Pass it on.", True),
        ("Returns it.", False),
        ("Whether it is.", False),
        ("The same.", False),
    ],
)
def test_verbs_are_recognized(text: str, expected: bool) -> None:
    assert is_imperative(text) is expected
