"""Replaces Python's clocks in this process, before anything of ours is imported: `steered_clock.py`."""

from tests.support.steered_clock import replace_clocks

replace_clocks()
