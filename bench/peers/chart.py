"""The chart: bars for each load, in a column for each promise. Plain SVG, the same bytes for the same result.

It has a background of its own in light and in dark, as a page that shows it may have either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from bench.peers.loads import Figure
from bench.peers.result import Group, Peer, Result
from bench.peers.tables import count, number
from bench.peers.variants import SURVIVES

WORDS: Final = "Brokers beside each other: messages a second and latency, by load and durability"
SHOWN: Final = ("pub2", "pub50", "deep", "batch", "consume", "latency1000 p99")
_WIDTH, _COLUMN, _MARGIN = 960, 460, 20
_TOP, _PANEL_HEAD, _BAR, _PANEL_GAP = 74, 22, 19, 14
_LABEL, _LONGEST = 152, 206  # the width of a name, and of the longest bar

_STYLE: Final = """
  .back { fill: #ffffff; stroke: #d1d9e0 } .text { fill: #1f2328 } .faint { fill: #59636e }
  .ours { fill: #0969da } .other { fill: #8c959f }
  text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif }
  .title { font-size: 16px; font-weight: 600 } .head { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .back { fill: #0d1117; stroke: #3d444d } .text { fill: #f0f6fc } .faint { fill: #9198a1 }
    .ours { fill: #4493f8 } .other { fill: #656c76 }
  }
"""


def svg(result: Result) -> str:
    columns = [(promise, _panels(result, result.group(promise))) for promise in SURVIVES if result.group(promise).peers]
    height = max(_TOP + sum(_height(peers) for _, peers in panels) for _, panels in columns) + _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-labelledby="title">',
        f'<title id="title">{WORDS}</title>',
        f"<style>{_STYLE}</style>",
        f'<rect class="back" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="6"/>',
        _text(_MARGIN, 30, "text title", "The same work on the same machine"),
        _text(_WIDTH - _MARGIN, 30, "faint", _source(result), anchor="end"),
    ]
    for at, (promise, panels) in enumerate(columns):
        lines += _column(result, _MARGIN + at * _COLUMN, SURVIVES[promise], panels)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panels(result: Result, group: Group) -> list[tuple[Figure, list[Peer]]]:
    return [(figure, result.ranking(figure, group)) for figure in group.figures if figure.name in SHOWN]


def _height(peers: Sequence[Peer]) -> int:
    return _PANEL_HEAD + _BAR * len(peers) + _PANEL_GAP


def _column(result: Result, x: int, head: str, panels: Sequence[tuple[Figure, list[Peer]]]) -> Iterator[str]:
    yield _text(x, 56, "text head", head)
    y = _TOP
    for figure, peers in panels:
        yield from _panel(result, x, y, figure, peers)
        y += _height(peers)


def _panel(result: Result, x: int, y: int, figure: Figure, peers: Sequence[Peer]) -> Iterator[str]:
    better = "" if figure.is_more_better else "; shorter is better"
    yield _text(x, y + 12, "faint", f"{figure.text}, {figure.unit}{better}")
    most = max(result.figures[figure.name, peer.name].median for peer in peers)
    for at, peer in enumerate(peers):
        yield from _bar(result, x, y + _PANEL_HEAD + at * _BAR, figure, peer, most)


def _bar(result: Result, x: int, y: int, figure: Figure, peer: Peer, most: float) -> Iterator[str]:
    median = result.figures[figure.name, peer.name].median
    length = max(1.0, _LONGEST * median / most) if most else 1.0
    kind = "ours" if peer.is_ours else "other"
    yield _text(x, y + 12, "text", peer.label)
    yield f'<rect class="{kind}" x="{x + _LABEL}" y="{y + 2}" width="{length:.1f}" height="13" rx="2"/>'
    yield _text(x + _LABEL + length + 6, y + 12, "text", number(median, figure))


def _source(result: Result) -> str:
    rounds, seconds = result.settings["rounds"], result.settings["seconds"]
    return f"{result.date}, {result.machine['cores']} cores, {count(rounds, 'round')} of {seconds:g} s"


def _text(x: float, y: float, kind: str, words: str, *, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'
