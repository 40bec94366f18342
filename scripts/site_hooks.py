"""Hooks of mkdocs: what the site has besides the files in docs/, and what a page there needs to become a page of the site.

Navigation follows docs/README.md, so that there is one list of pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from mkdocs.structure.files import File

from scripts import openapi_pages

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
CLIENT_PAGE: Final = "reference/nsqclient.md"
CLIENT_MODULES: Final = (
    "nsqclient",
    "nsqclient.aio",
    "nsqclient.sync",
    "nsqclient.blocking",
    "nsqclient.events",
    "nsqclient.testing",
    "nsqclient.otel",
)
_LINK: Final = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_is_item: Final = re.compile(r"\d+\. ").match
_LISTED: Final = re.compile(r"\[([^\]]+)\]\(([\w./-]+\.(?:md|yaml))\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = [{"Documents": "README.md"}, *navigation((DOCS / "README.md").read_text(encoding="utf-8"))]
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in generated_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep the text, and not the link, of what is no part of the site, and indent what belongs to items of lists."""
    folder = PurePosixPath(page.file.src_uri).parent

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        return match[0] if is_in_site(folder, target) else text

    return "\n".join(indented(_LINK.sub(link, markdown)))


def slug(text: str, separator: str) -> str:
    """Return the name of a heading in links, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", separator)


# Pages


def generated_pages() -> dict[str, str]:
    pages = {f"reference/openapi/{it.stem}.md": openapi_pages.page(it) for it in openapi_pages.files(DOCS)}
    return {**pages, CLIENT_PAGE: _client_page()}


def _client_page() -> str:
    modules = "".join(f"\n::: {module}\n" for module in CLIENT_MODULES)
    about = "All that [nsqclient](../how-to/python-client.md) promises, from its docstrings. [Its settings](client-options.md) have a page of their own."
    return f"# nsqclient\n\n{about}\n{modules}"


# Navigation


def navigation(index: str) -> list[dict[str, Any]]:
    """Return mkdocs' `nav`: a section for each `##`, a group for each line of text there, a page for each first link."""
    sections: list[dict[str, Any]] = []
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        sections.append({title.partition(":")[0]: [*_entries(body)]})
    return sections


def _entries(body: str) -> Iterator[dict[str, Any] | str]:
    group: list[dict[str, Any] | str] | None = None
    for line in filter(None, body.splitlines()):
        if not line.startswith("- "):
            group = []
            yield {line: group}
            continue
        for title, target in _LISTED.findall(line):
            entry = _entry(title, str(PurePosixPath(target).with_suffix(".md")), is_openapi=target.endswith(".yaml"))
            if group is None:
                yield entry
            else:
                group.append(entry)
        if "client-options.md" in line:
            yield {"API of nsqclient": CLIENT_PAGE}


def _entry(title: str, path: str, *, is_openapi: bool) -> dict[str, Any] | str:
    """Return the entry of a page. One whose link is a word in a sentence, "its records", is listed by its own title."""
    if is_openapi:
        return {f"OpenAPI: {title}": path}
    return {title: path} if title[0].isupper() or title.startswith("nsq") else path


# Links


def is_in_site(folder: PurePosixPath, target: str) -> bool:
    """Return whether a link stays in docs/, or leads to another host."""
    if "://" in target or target.startswith("#"):
        return True
    depth = len(folder.parts)
    for part in PurePosixPath(target.partition("#")[0]).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return False
    return True


# Lists


def indented(markdown: str) -> Iterator[str]:
    """Yield the lines, with what belongs to an item of a numbered list indented by four spaces a level, not by three.

    CommonMark wants three, below the text of `1. text`. Python-Markdown wants four, and an empty line before the next item.
    """
    in_list = False
    fence, shift = "", ""  # the indentation of the block of code that a line is in, with its three ticks; its change
    before = ""
    for line in markdown.split("\n"):
        if line and not line.startswith(" ") and not fence:
            in_list = _is_item(line) is not None
            if in_list and before.startswith("   "):
                yield ""
        spaces = len(line) - len(line.lstrip(" "))
        if not fence:
            shift = " " * (spaces // 3) if in_list else ""
        if line.lstrip(" ").startswith("```"):
            fence = "" if fence and line.startswith(fence) else fence or line[: spaces + 3]
        yield shift + line if line else line
        before = line
