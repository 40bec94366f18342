"""The generated page of a small table of options."""

from __future__ import annotations

from dataclasses import dataclass

from nsqcommon.options import BaseOptions, one_of, option
from scripts.option_pages import reference_page


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(BaseOptions):
    node_id: int = option(5, "which node", toml="id", at_least=0, below=1024)
    mode: str = option("fast", "in which way", kind=one_of("fast", "safe"))
    peer: tuple[str, ...] = option((), "whom to ask")


def test_the_reference_page_has_a_line_for_each_flag() -> None:
    page = reference_page(Options, "thing", about="About it.")
    assert "# Options of thing" in page
    assert "| `--mode=fast` fast\\|safe | in which way |\n" in page
    assert "| `--node-id=5` int | which node. Key: `id` |\n" in page
    assert "| `--peer` list | whom to ask |\n" in page
    assert "| `--version` | print the version and exit |\n" in page
