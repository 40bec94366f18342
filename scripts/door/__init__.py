"""What a newcomer does, on machines that have nothing: `scripts/test-door`.

`bases.py` makes empty Debian folders, `machines.py` makes machines of them, `visits.py` is the newcomer.
Uses the standard library only, because it runs before there is an environment.
"""
