"""Templates and static files: Jinja's environment with our filters, and files with a hash in their names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from nsqadmin import numbers

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Channel, Latency
    from nsqadmin.parts.links import Links

TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
STANDSTILL: Final = 0.05  # messages a second
_hashed: Final = re.compile(r"([a-z]+)\.([0-9a-f]{12})(\.[a-z]+)").fullmatch


class Static:
    """The style sheet and the scripts. Browsers may cache a name with the right hash forever.

    In our measurements, Starlette's `StaticFiles`, which asks the disk in threads at each request, took twice the
    processor time of a whole request for a file from memory. It also takes media types from the machine's tables.
    """

    def __init__(self, directory: str = "") -> None:
        self._root = Path(directory) if directory else files("nsqadmin") / "web" / "static"
        self._is_fixed = not directory
        self._kept: dict[str, bytes] = {}

    def name(self, asset: str) -> str:
        """Return the file's name with the hash of its content."""
        content = self.read(asset)
        if content is None or not self._is_fixed:
            return asset
        stem, _, suffix = asset.rpartition(".")
        return f"{stem}.{_digest(content)}.{suffix}"

    def find(self, name: str) -> tuple[bytes, str, bool] | None:
        """Return content, media type, and True if the content under this name can never change."""
        found = _hashed(name)
        asset = f"{found[1]}{found[3]}" if found else name
        content = self.read(asset)
        if content is None:
            return None
        return content, TYPES[asset[asset.rindex(".") :]], bool(found and found[2] == _digest(content))

    def read(self, asset: str) -> bytes | None:
        if not re.fullmatch(r"[a-z]+\.[a-z]+", asset) or asset[asset.rindex(".") :] not in TYPES:
            return None
        if (kept := self._kept.get(asset)) is not None:
            return kept
        try:
            content = self._root.joinpath(asset).read_bytes()
        except OSError:
            return None
        if self._is_fixed:
            self._kept[asset] = content
        return content


@cache
def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def environment(links: Links, static: Static) -> Environment:
    made = Environment(
        loader=PackageLoader("nsqadmin", "web/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(
        {
            "count": numbers.count,
            "exact": numbers.exact,
            "rate": numbers.rate,
            "duration": numbers.duration,
            "size": numbers.size,
            "ago": numbers.ago,
            "moment": numbers.moment,
            "several": numbers.several,
            "precise": lambda value: numbers.UNKNOWN if value is None else f"{value:,.2f}/s",
            "clock": _clock,
            "for_input": _for_input,
            "form_as": form_as,
            "breakable": breakable,
            "drain": drain,
            "trend_of": trend_of,
            "known_part": known_part,
            "latency": latency,
            "quantile": quantile,
            "skew": skew,
            "urlencode_all": lambda text: quote(text, safe="", errors="replace"),
        }
    )
    made.globals.update({"links": links, "static": lambda asset: links.to(f"/static/{static.name(asset)}")})
    return made


def form_as(value: float | None, form: str) -> str:
    return numbers.FORMS[form](value)


def breakable(text: str) -> Markup:
    """Let browsers break lines in a name after `. _ - / :`, and before `#ephemeral`."""
    return Markup(re.sub(r"([._\-/:])(?=.)|(?<=[^&])(?=#)", r"\1<wbr>", str(escape(text))))  # &#39; is an escape


def drain(channel: Channel) -> str:
    if channel.drain_time is not None:
        return numbers.duration(channel.drain_time)
    if not channel.depth or channel.growth is None or channel.growth < STANDSTILL:
        return numbers.UNKNOWN
    if channel.net_rate is not None and channel.net_rate >= STANDSTILL:
        return "growing"
    return "losing"  # it would grow, but a policy removes messages


def trend_of(channel: Channel) -> str:
    """Write the net rate. While a node is silent, it is that of the others: "≥ ↑ 36/s"."""
    text, value = numbers.net(channel.net_rate), channel.net_rate
    return f"≥ {text}" if channel.silent and value is not None and value > -STANDSTILL else text


def known_part(channel: Channel) -> str:
    """Name the nodes whose numbers a rate has, if that aren't all: "on 3 of 5 nodes, without n4:4151, n5:4151"."""
    if not channel.silent:
        return ""
    known = len(channel.nodes) - len(channel.silent)
    return f"on {known} of {numbers.several(len(channel.nodes), 'node')}, without {', '.join(channel.silent)}"


def latency(value: Latency | None) -> str:
    if value is None or not value.percentiles:
        return numbers.UNKNOWN
    # nsqd sends percentiles in the order of its options.
    highest = max(value.percentiles, key=lambda percentile: percentile.quantile)
    if highest.maximum is None:
        return numbers.UNKNOWN
    return f"{quantile(highest.quantile)} {numbers.duration(highest.maximum / 1e9)}"


def quantile(share: float) -> str:
    return f"p{share * 100:g}"


def skew(seconds: float) -> str:
    if abs(seconds) < 1:
        return "in sync"
    return f"{numbers.duration(abs(seconds))} {'ahead' if seconds > 0 else 'behind'}"


def _for_input(at: float) -> str:
    """Write the time in UTC as a field for dates and times wants it; the page's script turns it into local time."""
    return numbers.moment(at).removesuffix("Z")


def _clock(at: float | None, now: float) -> Markup | str:
    """Write the time in UTC; the page's script turns it into local time."""
    if not at:
        return numbers.UNKNOWN
    return Markup('<time datetime="{}">{}</time>').format(numbers.moment(at), numbers.clock(at, now))
