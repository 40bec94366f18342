"""Tables of options as Markdown, for the generated pages of docs/reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqcommon.options import EVERYWHERE, BaseOptions, Option, help_text, table_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def reference_page(options_class: type[BaseOptions], program: str, *, about: str) -> str:
    """Return the Markdown page of a daemon's table. `about` is the paragraph that stands above it."""
    lines = [
        f"# Options of {program}",
        "",
        "<!-- Written by scripts/make-reference from the table of options. Change the table, not this page. -->",
        "",
        about.strip(),
        "",
        *_table_lines(options_class, in_file=True),
        *(f"| `--{flag}` | {word or 'bool'} | | {text} |" for flag, word, text, _ in EVERYWHERE),
    ]
    return "\n".join(lines) + "\n"


def reference_table(options_class: type[DataclassInstance]) -> str:
    """Return the table alone, as a tool shows it."""
    return "\n".join(_table_lines(options_class, in_file=False)) + "\n"


def _table_lines(options_class: type[DataclassInstance], *, in_file: bool) -> list[str]:
    rows = sorted(table_of(options_class), key=lambda row: row.flag)
    return [
        "| Flag | Type | Default | Meaning |",
        "| --- | --- | --- | --- |",
        *(_reference_line(row, in_file=in_file) for row in rows),
    ]


def _reference_line(row: Option, *, in_file: bool) -> str:
    word = "list" if row.kind.is_repeated else row.kind.word or "bool"
    default = row.shown_default().replace("\n", "\\n")
    shown = "" if not default else default if row.default_shown else f"`{default}`"
    text = help_text(row)
    if in_file and row.key != row.flag.replace("-", "_"):
        text += f". In the file and under `/config/`: `{row.key}`"
    if row.at_run_time:
        text += ". Can be changed at run time"
    cells = (f"`--{row.flag}`", word, shown, text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
