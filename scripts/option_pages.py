"""Tables of options as Markdown, for the generated pages of docs/reference."""

from __future__ import annotations

from collections.abc import Iterable

from nsqcommon.options import EVERYWHERE, BaseOptions, Option, help_text, table_of


def reference_page(options_class: type[BaseOptions], program: str, *, about: str) -> str:
    """Return the Markdown page of a daemon's table. `about` is the paragraph that stands above it."""
    lines = [
        f"# Options of {program}",
        "",
        "<!-- Written by scripts/make-reference from the table of options. Change the table, not this page. -->",
        "",
        about.strip(),
        "",
        *_table_lines(table_of(options_class), in_file=True),
        *(f"{f'| `--{flag}` {word}'.rstrip()} | {text} |" for flag, word, text, _ in EVERYWHERE),
    ]
    return "\n".join(lines) + "\n"


def reference_table(options: Iterable[Option]) -> str:
    """Return the table alone, as a tool shows it."""
    return "\n".join(_table_lines(options, in_file=False)) + "\n"


def _table_lines(options: Iterable[Option], *, in_file: bool) -> list[str]:
    return [
        "| Flag with its default, type | Meaning |",
        "| --- | --- |",
        *(reference_line(row, in_file=in_file) for row in sorted(options, key=lambda row: row.flag)),
    ]


def reference_line(row: Option, *, in_file: bool) -> str:
    """Return an option's row. What a list is, and a flag without a type, is said above the table, once."""
    word = "list" if row.kind.is_repeated else row.kind.word
    default = row.shown_default().replace("\n", "\\n")
    flag = f"`--{row.flag}={default}`" if default and not row.default_shown else f"`--{row.flag}`"
    cells = [" ".join(filter(None, (flag, word, row.default_shown and f"({row.default_shown})")))]
    text = help_text(row).removesuffix(" (may be given multiple times)")
    if in_file and row.key != row.flag.replace("-", "_"):
        text += f". Key: `{row.key}`"
    if row.at_run_time:
        text += ". Can be changed at run time"
    cells.append(text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
