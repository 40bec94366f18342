"""How a limit that each node applies by itself adds up over several nodes, in words.

For example, `max_in_flight = 3` on three nodes is "3 on each node, up to 9 on these three".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_WORDS: Final = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)


def sum_in_words(limits: Sequence[int], together: str = "these {}") -> str:
    """Return the nodes' limits and their sum in words. 0 means that a node has no limit.

    In `together`, which ends the text, `{}` stands for the number of nodes.
    """
    with_limit = [it for it in limits if it]
    if len(limits) <= 1 or not with_limit:
        return f"{limits[0]:,}" if any(limits) else "no limit"
    least, most = min(with_limit), max(with_limit)
    each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    if len(with_limit) < len(limits):
        return f"{each} on {_word(len(with_limit))} of {together.format(_word(len(limits)))}, no limit on the others"
    return f"{each} on each node, up to {sum(limits):,} on {together.format(_word(len(limits)))}"


def _word(count: int) -> str:
    return _WORDS[count] if count < len(_WORDS) else f"{count:,}"
