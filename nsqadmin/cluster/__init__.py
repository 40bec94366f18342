"""The cluster as nsqadmin shows it: the answers of all nodes merged into one picture, and its history.

`node_stats.py` reads one node's answer, `merge.py` joins those of all nodes, `model.py` is what comes out. `series.py`
has the history of numbers, `events.py` what has happened, and `recording.py` a picture as a file.
"""
