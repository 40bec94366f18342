"""The rows of a run as the result file has them, and what that file has besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.peers.loads import BACKLOG, CLIENT_TIMES, FIGURES, Figure
from bench.peers.variants import REFERENCES, Promise, Variant
from bench.report import Row

Values = dict[tuple[str, str], list[float]]  # by figure and variant, one for each round


@dataclass(frozen=True)
class PeerRow(Row):
    load: str = ""
    peer: str = ""

    def described(self) -> dict[str, object]:
        return {"load": self.load, "peer": self.peer, **super().described()}


@dataclass(frozen=True, slots=True)
class Missing:
    """What a variant does not have."""

    peer: str
    load: str  # a figure, a part of a run that failed ("rates", "backlog", "kill"), or empty: all
    why: str

    def described(self) -> dict[str, str]:
        return {"peer": self.peer, "load": self.load, "why": self.why}


class Measurements(list[Row]):
    """The rows, and what the result file says of the brokers."""

    def __init__(
        self, rows: Sequence[Row], measured: Sequence[Variant], missing: Sequence[Missing], count: int
    ) -> None:
        super().__init__(rows)
        self.measured = measured
        self.missing = missing
        self.backlog = count

    def described(self) -> dict[str, object]:
        return {
            "backlog": self.backlog,
            "peers": [_described(variant) for variant in self.measured],
            "missing": [it.described() for it in self.missing],
        }


def _described(variant: Variant) -> dict[str, object]:
    return {
        "name": variant.name,
        "label": variant.label,
        "promise": variant.promise.value,
        "durability": variant.durability,
        "version": variant.version,
        "client": variant.client,
    }


def rows_of(
    values: Values, notes: dict[tuple[str, str], str], measured: Sequence[Variant], missing: Sequence[Missing] = ()
) -> list[Row]:
    """Return the rows. A figure that is missing in one round is left out: the other rounds would only show it at its best."""
    given_up = {(it.load, it.peer) for it in missing}
    return [
        _row(figure, variant, values, notes.get((figure.name, variant.name), ""))
        for figure in (*FIGURES, *CLIENT_TIMES.values())
        for variant in measured
        if values.get((figure.name, variant.name)) and (figure.name, variant.name) not in given_up
    ]


def _row(figure: Figure, variant: Variant, values: Values, note: str) -> Row:
    own = values[figure.name, variant.name]
    other = REFERENCES[Promise.WRITTEN if figure in BACKLOG else variant.promise]
    reference = values.get((figure.name, other), [])
    is_compared = variant.name != other and not variant.client and len(reference) == len(own)
    return PeerRow(
        f"{variant.label}: {figure.text}",
        figure.unit,
        tuple(own),
        other=other if is_compared else "",
        other_values=tuple(reference) if is_compared else (),
        note=note,
        load=figure.name,
        peer=variant.name,
    )
