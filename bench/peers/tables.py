"""The tables in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Final

from bench.peers.loads import START, Figure
from bench.peers.result import Ahead, Group, Peer, Result
from bench.peers.variants import SURVIVES, Promise

NOBODY: Final = "all alike"
_SURVIVES: Final = {Promise.WRITTEN: "survive `kill -9`", Promise.SYNCED: "survive a power cut"}


def page(result: Result) -> str:
    """Return everything that a run has measured, for the terminal."""
    told = brokers([peer for peer in result.peers if not peer.is_limit])
    parts = [*filter(None, (provenance(result), summary(result), told))]
    parts += [f"**{group.words}**\n\n{table(result, group)}" for group in result.groups() if group.figures]
    parts += [own_table(result, group) for group in result.apart() if group.figures]
    parts += limit_table(result)
    return "\n\n".join([*parts, left_out(result)]).strip()


def document(result: Result) -> str:
    """Return the figures for the page of the documents: medians of what survives kill -9, without rare percentiles."""
    groups = [it for it in result.groups() if it.figures and it.name != Promise.MEMORY]
    parts = [f"**{group.words}**\n\n{table(result, group, short=True)}" for group in groups]
    parts += [own_table(result, group, short=True) for group in result.apart() if group.figures]
    parts += limit_table(result, short=True)
    told = brokers([peer for peer in result.peers if peer.promise in SURVIVES and not peer.is_limit])
    return "\n\n".join([provenance(result), *parts, told, left_out(result)]).strip()


def sentence(result: Result) -> str:
    """Count who is ahead, for a reader of the README. Figures whose spreads overlap count for nobody."""
    promises = [(f"of {{}} figures with answers that {words}", result.group(it)) for it, words in _SURVIVES.items()]
    held = (f"of {{}} with a backlog of {result.backlog:,} messages", result.group("backlog"))
    counted = "; ".join(_counted(result, words, group) for words, group in (*promises, held) if group.figures)
    versions = [*dict.fromkeys(peer.version for peer in result.ranked())]
    return (
        f"{counted[0].upper()}{counted[1:]}.\n"
        f"Measured on {result.date} on {count(result.machine['cores'], 'core')}, with {_listed(versions)}."
    )


def _counted(result: Result, words: str, group: Group) -> str:
    found = [it for figure in _without_rare(group.figures) if (it := result.ahead(figure, group)) is not None]
    clear = Counter(it.peer.label.split(",")[0] for it in found if it.is_clear)
    parts = [
        f"{name} {'in' if place else 'is ahead in'} {number}"
        for place, (name, number) in enumerate(clear.most_common())
    ]
    if within := len(found) - clear.total():
        parts.append(f"{within} {'is' if within == 1 else 'are'} too close to tell")
    return f"{words.format(len(found))}, {_listed(parts)}"


def _listed(parts: Sequence[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _without_rare(figures: Sequence[Figure]) -> list[Figure]:
    return [it for it in figures if "p99.9" not in it.name]


def summary(result: Result) -> str:
    """Return the short form: for each load who is ahead, with the promises that survive kill -9, and for a backlog."""
    promises = [promise for promise in SURVIVES if result.group(promise).peers]
    groups = [result.group(promise) for promise in promises]
    if not groups:
        return ""
    figures = _without_rare(groups[0].figures)
    lines = _head(["ahead is", *(SURVIVES[promise] for promise in promises)])
    lines += [
        _line([figure.text, *(_ahead(result, figure, group, with_figure=True) for group in groups)])
        for figure in figures
    ]
    held = result.group("backlog")
    if held.figures:
        lines += ["", *_head([held.words, "ahead is"])]
        lines += [_line([it.text, _ahead(result, it, held, with_figure=True)]) for it in held.figures]
    return "\n".join(lines)


def table(result: Result, group: Group, *, short: bool = False) -> str:
    lines = [
        _line(["", *(peer.label for peer in group.peers), "ahead"]),
        _line(["---", *(["---:"] * len(group.peers)), "---"]),
    ]
    for figure in _without_rare(group.figures) if short else group.figures:
        cells = [_cell(result, figure, peer, median_only=short) for peer in group.peers]
        lines.append(_line([f"{figure.text}, {figure.unit}", *cells, _ahead(result, figure, group)]))
    return "\n".join(lines)


def own_table(result: Result, group: Group, *, short: bool = False) -> str:
    """Return the table of a broker that its own client has measured, beside that client's processor time."""
    (peer,) = group.peers
    lines = [_line(["", peer.label, "its client's processor time for a message, µs"]), _line(["---", "---:", "---:"])]
    for figure in _without_rare(group.figures) if short else group.figures:
        time = result.client_time(figure, peer)
        cells = [_cell(result, figure, peer, median_only=short), "–" if time is None else _digits(time.median)]
        lines.append(_line([f"{figure.text}, {figure.unit}", *cells]))
    head = (
        f"**{group.words}**: the others are measured by a load generator in C, which takes little of the processor, so"
        " this table is not ranked with theirs. It is warmed up before each load, for ten times as long."
    )
    return f"{head}\n\n" + "\n".join(lines)


def limit_table(result: Result, *, short: bool = False) -> list[str]:
    """Return how far ours are from the physical limit, if that was measured."""
    group = result.beside_limit()
    if group is None:
        return []
    limit, *ours = group.peers
    lines = [
        _line(["", limit.label, *(head for peer in ours for head in (peer.label, f"limit / {peer.label}"))]),
        _line(["---", "---:", *(["---:"] * (2 * len(ours)))]),
    ]
    for figure in group.figures:
        cells = [_cell(result, figure, limit, median_only=True)]
        for peer in ours:
            ratios = _spread_of_ratios(result.ratios(figure, limit, peer), median_only=short)
            cells += [_cell(result, figure, peer, median_only=True), ratios]
        lines.append(_line([f"{figure.text}, {figure.unit}", *cells]))
    head = (
        f"**{group.words}, which is no broker**: `bench/limit.c` receives, writes to a file and answers, in one thread and"
        " with the fewest system calls, and nobody can consume from it. So it is not ranked. A ratio is the median of the"
        " ratios round by round."
    )
    return [f"{head}\n\n" + "\n".join(lines)]


def _spread_of_ratios(ratios: Sequence[float], *, median_only: bool) -> str:
    if not ratios:
        return "–"
    low, high = (_times(it) for it in (min(ratios), max(ratios)))
    spread = "" if median_only or low == high else f" ({low} to {high})"
    return f"{_times(median(ratios))}{spread}"


def brokers(peers: Sequence[Peer]) -> str:
    """Say what each broker was told. Builds of one version with the same settings share a line. Empty: there are none."""
    labels: dict[tuple[str, str], list[str]] = {}
    for peer in peers:
        labels.setdefault((peer.version, peer.durability), []).append(peer.label)
    lines = _head(["", "version", "durability"])
    lines += [_line(["; ".join(those), version, told]) for (version, told), those in labels.items()]
    return "\n".join(lines) if labels else ""


def provenance(result: Result) -> str:
    """Say how the figures came about: a reduced run has to look like one."""
    rounds, seconds = result.settings["rounds"], result.settings["seconds"]
    load = float(result.machine["load_average"])
    return (
        f"Measured on {result.date} by `{result.command}`: {count(rounds, 'round')} in turns,"
        f" {seconds:g} s for each load, medians of the rounds, a backlog of {result.backlog:,} messages;"
        f" {result.machine['cores']} cores of {result.machine['model']}, load average {load:.1f} at the end,"
        f" commit {result.versions['commit']}."
    )


def left_out(result: Result) -> str:
    whole = [it for it in result.missing if not it["load"]]
    return "\n".join(["Not measured:", "", *(f"- {it['peer']}: {it['why']}" for it in whole)]) if whole else ""


def _cell(result: Result, figure: Figure, peer: Peer, *, median_only: bool) -> str:
    measured = result.figures.get((figure.name, peer.name))
    if measured is None:
        return result.why_missing(figure, peer) or "–"
    if median_only:
        return number(measured.median, figure)
    has_spread = measured.low < measured.high
    spread = f" ({number(measured.low, figure)} to {number(measured.high, figure)})" if has_spread else ""
    ratio = f", {_times(measured.ratio)}" if measured.ratio is not None else ""
    note = f" ({measured.note})" if measured.note else ""
    return f"{number(measured.median, figure)}{ratio}{spread}{note}"


def _ahead(result: Result, figure: Figure, group: Group, *, with_figure: bool = False) -> str:
    found = result.ahead(figure, group)
    if found is None:
        return NOBODY if result.ranking(figure, group) else "–"
    median = result.figures[figure.name, found.peer.name].median
    words = f"**{found.peer.label}**"
    if with_figure:
        words += f" {number(median, figure)} {figure.unit}"
    return words + _comparison(found, figure)


def _comparison(found: Ahead, figure: Figure) -> str:
    if found.other is None:
        return " (alone)"
    spread = "" if found.is_clear else ", within the spread"
    if found.factor is None:
        return f" (before {found.other.label}{spread})"
    factor, other = _times(found.factor), found.other.label
    return f" ({factor} {other}{spread})" if figure.is_more_better else f" ({other}: {factor}{spread})"


def _times(factor: float) -> str:
    return f"{factor:.2f}×" if factor < 10 else f"{factor:,.0f}×"


def number(value: float, figure: Figure) -> str:
    """Return a figure with three digits that count."""
    return f"{value:.2f}" if figure.unit == START else _digits(value)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _head(cells: Sequence[str]) -> list[str]:
    return [_line(cells), _line(["---"] * len(cells))]


def count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
