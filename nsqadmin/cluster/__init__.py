"""The cluster as nsqadmin shows it: the answers of all nodes merged into a snapshot, and its history.

`node_stats.py` reads one node's answer, `merge.py` joins all nodes' answers, `model.py` has the result. `series.py` has
the history of numbers, `events.py` finds events, and `recording.py` saves a snapshot as a file.
"""
