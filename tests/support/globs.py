"""Whether a pattern of names matches, by trying everything: slow, and easy to believe."""

from __future__ import annotations


def matches(pattern: str, name: str) -> bool:
    """Return whether the name is the pattern with some text in place of each `*`."""
    ends = {0}  # all places in the name up to which the pattern so far may reach
    for character in pattern:
        if character == "*":
            ends = set(range(min(ends, default=len(name) + 1), len(name) + 1))
        else:
            ends = {end + 1 for end in ends if name[end : end + 1] == character}
    return len(name) in ends
