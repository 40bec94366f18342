"""The picture of `noisy`: which share of the others' messages has waited no longer than a time. Plain SVG.

It has a background of its own in light and in dark, as a page that shows it may have either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from pathlib import Path
from typing import Any, Final

PICTURE: Final = Path("docs/pictures/noisy.svg")
SIDES: Final = ("alone", "shared", "unshared")
SHARES: Final = (*(percent / 100 for percent in range(100)), 0.995, 0.999, 1.0)
WORDS: Final = "How long other customers' messages wait beside one with a hundred times their load"
_LABELS: Final = {
    "alone": "without the large customer",
    "shared": 'with it, share = "group"',
    "unshared": "with it, without share",
}
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 340, 56, 20, 118, 46
_STYLE: Final = """
  .back { fill: #ffffff; stroke: #d1d9e0 } .text { fill: #1f2328 } .faint { fill: #59636e } .grid { stroke: #d1d9e0 }
  .alone { stroke: #59636e } .shared { stroke: #0969da } .unshared { stroke: #bc4c00 }
  .line { fill: none; stroke-width: 2.5 } .unshared, .alone { stroke-dasharray: 7 4 }
  text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif }
  .title { font-size: 16px; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .back { fill: #0d1117; stroke: #3d444d } .text { fill: #f0f6fc } .faint { fill: #9198a1 } .grid { stroke: #3d444d }
    .alone { stroke: #9198a1 } .shared { stroke: #4493f8 } .unshared { stroke: #db6d28 }
  }
"""


def quantile(ascending: Sequence[float], share: float) -> float:
    """Return the value that this share of all values does not exceed."""
    return ascending[max(0, ceil(share * len(ascending)) - 1)]


def described(runs: Sequence[Sequence[float]]) -> list[float]:
    """Return the waits of all runs together, in milliseconds, at each of `SHARES`: the points of a line."""
    together = sorted(wait for waits in runs for wait in waits)
    return [round(quantile(together, share), 3) for share in SHARES]


def svg(result: Mapping[str, Any]) -> str:
    """Draw a result file."""
    waits: Mapping[str, Sequence[float]] = result["waits"]
    settings = result["settings"]
    axis = _Axis([wait for line in waits.values() for wait in line])
    others, one = settings["rate"], settings["rate"] * settings["times"]
    about = f"999 customers publish {others}/s together, another one {one:,}/s, and {settings['waiting']:,} of its jobs wait"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="title">',
        f'<title id="title">{WORDS}</title>',
        f"<style>{_STYLE}</style>",
        f'<rect class="back" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="6"/>',
        _text(_LEFT, 28, "text title", "Share of the other customers' messages that came within a time"),
        _text(_LEFT, 46, "faint", about),
        *_scales(axis),
    ]
    for row, name in enumerate(SIDES):
        y = 64 + 18 * row
        lines.append(f'<path class="line {name}" d="M{_LEFT} {y}h28"/>')
        p99 = _time(waits[name][SHARES.index(0.99)])
        lines.append(
            _text(_LEFT + 36, y + 4, "text", f"{_LABELS[name]}: {'at least ' * (name == 'unshared')}{p99} (p99)")
        )
        points = " ".join(
            f"{axis.x(wait):.1f},{_y(share):.1f}" for wait, share in zip(waits[name], SHARES, strict=True)
        )
        lines.append(f'<polyline class="line {name}" points="{points}"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


class _Axis:
    """Times, each decade as wide as the next."""

    def __init__(self, waits: Sequence[float]) -> None:
        self._first = floor(log10(max(min(waits), 0.01)))
        self._last = max(ceil(log10(max(waits))), self._first + 1)

    @property
    def decades(self) -> range:
        return range(self._first, self._last + 1)

    def x(self, wait: float) -> float:
        part = (log10(max(wait, 10.0**self._first)) - self._first) / (self._last - self._first)
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)


def _scales(axis: _Axis) -> Iterator[str]:
    for percent in range(0, 101, 25):
        y = _y(percent / 100)
        yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
        yield _text(_LEFT - 8, y + 4, "faint", f"{percent} %", anchor="end")
    for decade in axis.decades:
        x = axis.x(10.0**decade)
        yield f'<path class="grid" d="M{x:.1f} {_y(0):.1f}V{_y(1):.1f}"/>'
        anchor = "end" if decade == axis.decades[-1] else "middle"
        yield _text(x, _y(0) + 18, "faint", _time(10.0**decade), anchor=anchor)


def _y(share: float) -> float:
    return _TOP + (1 - share) * (_HEIGHT - _TOP - _BOTTOM)


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.3g} s" if milliseconds >= 1000 else f"{milliseconds:.3g} ms"


def _text(x: float, y: float, kind: str, words: str, *, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'
