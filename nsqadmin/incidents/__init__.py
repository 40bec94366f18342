"""Incidents: findings grouped by cause, so that one cause is one card and not a hundred.

    Snapshot.findings ─► grouping ─► Incident ─► book ─► Open      what the pages, the API and /metrics show
                            │                     │
                         suspects              changes, marks

`model.py` has the records. `grouping.py` decides which findings have one cause, with `suspects.py` for causes that are a
consumer's program; `wording.py` puts an incident into words. `book.py` follows incidents over time: when each began,
the numbers then, and whether it grows. `changes.py` looks up what changed just before, and `marks.py` has what people
acknowledged or muted. All of these are cores: docs/decisions/0013-nsqadmin-that-does-not-guess.md.
"""
