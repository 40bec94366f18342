"""nsqadmin talks as an operator would: its texts have none of the turns of phrase that only we would use.

Read are the texts of templates, with tooltips and placeholders, and the strings of prose in modules and scripts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.process import ROOT

# Each with the words to use instead.
PRIVATE: Final = {
    r"nobody|anybody|somebody": "no consumer, you, someone, anonymous",
    r"whoever|whatever": "a noun: the user who ...",
    r"anew": "again, restart at",
    r"(?:go|goes) by": "use",
    r"what (?:is(?! “)|was|are|were|waits?|holds?|held|becomes?|they|you see)": "a noun: the waiting messages",
    r"all that (?:wait|tell|report|is|are|answer|has|have)s?": "all messages, all nodes",
    r"(?:has|have|is|are|not|it) told": "report",
    r"tells? it": "reports it",
    r"g(?:ive|ives|iving|ave|iven) \w* ?back|hand(?:s|ed)? (?:\w+ )?over|go(?:es)? back": "requeue, return",
    r"t(?:ake|akes|aking|ook|aken) (?:\w+ )?back": "undo, cancel",
    r"at work": "running",
    r"looked at|not looked": "searched, read",
    r"hits?": "match, matches",
    r"in part in part|unknown in part|known in part": "partly unknown",
    r"(?:in|of|from) all sums|the sums": "totals",
    r"last known numbers": "last known values",
    r"mended": "fixed",
    r"has got|have got|had got": "has received",
    r"as there (?:was|were)": "because",
    r"all the same": "anyway",
    r"lands? in": "destination, writes to",
    r"than ours|of ours": "an older version",
    r"remarks?": "notes",
    r"no longer waited": "no longer waiting",
    r"entered in": "registered",
    r"go(?:es)? on": "continue",
    r"the rest (?:of them )?(?:stays|at work)": "the others stay",
    r"worth knowing": "notes",
}
PROSE: Final = re.compile(r"\b(?:" + "|".join(PRIVATE) + r")\b", re.IGNORECASE)
LITERAL: Final = re.compile(r'"([^"]*)"|\'([^\']*)\'')
READ: Final = re.compile(r'\b(?:title|placeholder|aria-label|alt)="([^"]*)"')


def of_template(text: str) -> Iterator[tuple[int, str]]:
    """Yield what a reader of the page may see, by line."""
    text = re.sub(r"\{#.*?#\}", lambda it: "\n" * it[0].count("\n"), text, flags=re.DOTALL)
    for number, line in enumerate(text.splitlines(), 1):
        literals = [found for it in re.findall(r"\{[{%].*?[}%]\}", line) for found in LITERAL.findall(it)]
        plain = re.sub(r"\{[{%].*?[}%]\}", " x ", line)
        attributes = " · ".join(READ.findall(plain))
        shown = re.sub(r"<[^>]*>", " ", plain)
        yield number, " · ".join([shown, attributes, *(text for found in literals if " " in (text := "".join(found)))])


def of_module(text: str) -> Iterator[tuple[int, str]]:
    """Yield the strings that are prose; docstrings are for us."""
    tree = ast.parse(text)
    inside = {id(part) for it in ast.walk(tree) if isinstance(it, ast.JoinedStr) for part in it.values}
    inside |= {id(it.value) for it in ast.walk(tree) if isinstance(it, ast.Expr)}
    for it in ast.walk(tree):
        if isinstance(it, ast.JoinedStr):
            found = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in it.values)
        elif isinstance(it, ast.Constant) and isinstance(it.value, str) and id(it) not in inside:
            found = it.value
        else:
            continue
        if " " in found.strip():
            yield it.lineno, found


def of_script(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition(" // ")[0] if not line.lstrip().startswith("//") else ""
        for found in re.findall(r'"([^"]* [^"]*)"|`([^`]* [^`]*)`', code):
            yield number, re.sub(r"\$\{[^}]*\}", "x", found[0] or found[1])


READERS: Final = {".html": of_template, ".py": of_module, ".js": of_script}


def found_in(path: Path) -> list[str]:
    read = READERS[path.suffix](path.read_text(encoding="utf-8"))
    return [
        f"{path.relative_to(ROOT)}:{number}: {it[0]!r} in {text!r}"
        for number, text in read
        for it in PROSE.finditer(text)
    ]


def test_texts_of_nsqadmin_are_plain_english() -> None:
    files = [it for suffix in READERS for it in (ROOT / "nsqadmin").rglob(f"*{suffix}")]
    assert len(files) > 200
    found = [line for it in sorted(files) for line in found_in(it)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".html", '<p title="Buries again what was kicked">{{ name }}</p>'),
        (".html", '<p>{{ ui.notice("info", "Nodes go by different files") }}</p>'),
        (".html", "<p>{{ count }} hits</p>"),
        (".py", 'say(f"{node} has not told its reasons")'),
        (".js", "this.show(`${count} hits so far`)"),
    ],
)
def test_private_words_are_found_wherever_a_reader_meets_them(suffix: str, text: str) -> None:
    assert [it for _, shown in READERS[suffix](text) for it in PROSE.finditer(shown)]


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".html", '{# what was kicked #}<p class="hits">{{ all_hits | length }}</p>{% if it.told %}{% endif %}'),
        (".py", '"""Say what was kicked."""\nHITS = "hits"\n'),
        (".js", "// what was found\nconst hits = 1;"),
    ],
)
def test_code_may_use_them(suffix: str, text: str) -> None:
    assert not [it for _, shown in READERS[suffix](text) for it in PROSE.finditer(shown)]
