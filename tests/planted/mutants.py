"""Small random changes of the product, to see which of them the tests notice.

`draw` chooses them by a seed. They are stored in mutants.tsv, so that the same ones are tried after the sources have
moved; a file that is renamed is renamed there, too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from tests.planted.table import Bug
from tests.support.process import ROOT

STORED: Final = Path(__file__).with_name("mutants.tsv")
SEED: Final = 36
DRAWN: Final = {"nsqd": 30, "common/nsqcommon": 15, "nsqclient": 15}
# The tests of each package, as arguments of pytest.
TESTS: Final = {
    "nsqd": (
        "tests/nsqd",
        "--ignore=tests/nsqd/whole",
        "tests/model",
        "tests/conformance",
        "tests/nsqcommon/test_http_client.py",
        "tests/nsqcommon/test_web.py",
        "tests/nsqcommon/test_web_streams.py",
    ),
    "common": ("tests/nsqcommon", "tests/nsqd/client", "tests/conformance", "tests/nsqclient"),
    "nsqclient": ("tests/nsqclient", "tests/e2e/test_clients.py"),
}
_COMPARISONS: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_CALCULATIONS: Final[dict[type[ast.operator], str]] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.LShift: ">>",
    ast.RShift: "<<",
}
_STATEMENTS: Final = (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise, ast.Continue, ast.Break)
_SAYS_ONLY: Final = ("log.", "logging.", "self._log.")  # calls that tell somebody something


@dataclass(frozen=True, slots=True)
class Mutant:
    file: str
    old: str  # as many whole lines as it takes to be unique in the file
    new: str

    @property
    def bug(self) -> Bug:
        """Return it as a row of the table."""
        old, new = self.old.strip().splitlines()[-1], self.new.strip().splitlines()[-1]
        return Bug(f"{self.file}: {old.strip()}  ->  {new.strip()}", "", self.file, ((self.old, self.new),), ())

    @property
    def tests(self) -> tuple[str, ...]:
        """Arguments of pytest: the tests of the package, and first those of the file that was changed."""
        of_package = TESTS[self.package]
        test = f"test_{Path(self.file).stem.lstrip('_')}"
        names = f"{test}.py", f"{test}_*.py"
        near = {path for folder in of_package for name in names for path in (ROOT / folder).rglob(name)}
        return *sorted(str(path.relative_to(ROOT)) for path in near), *of_package

    @property
    def package(self) -> str:
        return self.file.partition("/")[0]


def stored() -> list[Mutant]:
    rows = [line.split("\t") for line in STORED.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [Mutant(file, _lines(old), _lines(new)) for file, old, new in rows]


def store(mutants: Sequence[Mutant], seed: int) -> None:
    head = f"# Drawn by `scripts/test-planted --draw {seed}`: file, lines as they are, lines instead"
    rows = ["\t".join((it.file, ascii(it.old)[1:-1], ascii(it.new)[1:-1])) for it in mutants]
    STORED.write_text("\n".join((head, *rows)) + "\n", encoding="utf-8")


def _lines(text: str) -> str:
    found = ast.literal_eval(f'"{text}"' if "'" in text and '"' not in text else f"'{text}'")
    assert isinstance(found, str)
    return found


def draw(seed: int = SEED) -> list[Mutant]:
    """Choose places at random: each place of a package is as likely as any other."""
    found: list[Mutant] = []
    for package, count in DRAWN.items():
        random = Random(f"{seed} {package}")
        sources = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / package).rglob("*.py"))}
        places = [(path, place) for path, source in sources.items() for place in places_in(source)]
        chosen: set[tuple[Path, int]] = set()
        while len(chosen) < count:
            path, (line, change) = random.choice(places)
            if (path, line) not in chosen:
                chosen.add((path, line))
                old, new = _unique(sources[path], change)
                found.append(Mutant(str(path.relative_to(ROOT)), old, new))
    return found


@dataclass(frozen=True, slots=True)
class Change:
    """Characters [start, end) of a file, and what stands there instead."""

    start: int
    end: int
    text: str


def places_in(source: str) -> Iterator[tuple[int, Change]]:
    """Yield line and change of everything that may be mutated."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = source.splitlines()

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def between(left: ast.expr, right: ast.expr, text: str) -> Change | None:
        """Replace the operator between two operands that stand in one line."""
        assert left.end_lineno is not None
        assert left.end_col_offset is not None
        if left.end_lineno != right.lineno:
            return None
        start, end = offset(left.end_lineno, left.end_col_offset), offset(right.lineno, right.col_offset)
        gap = source[start:end]
        head, tail = gap[: len(gap) - len(gap.lstrip(" )"))], gap[len(gap.rstrip(" (")) :]
        return Change(start, end, f"{head}{text}{tail}")

    for node in _code_of(ast.parse(source)):
        change: Change | None = None
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            change = between(node.left, node.comparators[0], _COMPARISONS[type(node.ops[0])])
        elif isinstance(node, ast.BoolOp):
            change = between(node.values[0], node.values[1], "or" if isinstance(node.op, ast.And) else "and")
        elif isinstance(node, ast.BinOp) and type(node.op) in _CALCULATIONS:
            change = between(node.left, node.right, _CALCULATIONS[type(node.op)])
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            text = str(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
            change = _instead(node, offset, text)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            change = _instead(node, offset, f"({ast.unparse(node.operand)})")
        elif isinstance(node, _STATEMENTS) and not _is_told_or_missed(node):
            change = _instead(node, offset, "pass")
        if change is not None:
            yield node.lineno, change


def _is_told_or_missed(node: ast.stmt) -> bool:
    """Return whether a statement only tells somebody something, or makes a name without which the next line fails."""
    makes_name = isinstance(node, ast.Assign) and any(isinstance(it, ast.Name | ast.Tuple) for it in node.targets)
    return makes_name or ast.unparse(node).startswith(_SAYS_ONLY)


def _instead(node: ast.stmt | ast.expr, offset: Callable[[int, int], int], text: str) -> Change | None:
    assert node.end_col_offset is not None
    if node.lineno != node.end_lineno:
        return None
    return Change(offset(node.lineno, node.col_offset), offset(node.lineno, node.end_col_offset), text)


def _code_of(tree: ast.AST) -> Iterator[ast.stmt | ast.expr]:
    """Yield statements and expressions that run: no annotations, docstrings, constants of a module, or imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                yield from _below(statement)


def _below(node: ast.AST) -> Iterator[ast.stmt | ast.expr]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.JoinedStr):
        return  # functions are found by themselves; what text says is no rule
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.stmt | ast.expr):
        yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "type_comment"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _below(child)


def _unique(source: str, change: Change) -> tuple[str, str]:
    """Return whole lines that are there once, and what stands there after the change."""
    start, end = source.rfind("\n", 0, change.start) + 1, source.index("\n", change.end) + 1
    while source.count(source[start:end]) > 1:
        start = source.rfind("\n", 0, start - 1) + 1
    old = source[start:end]
    return old, old[: change.start - start] + change.text + old[change.end - start :]
