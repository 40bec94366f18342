"""Imports the data path of a Go nsqd, once, before nsqd serves anything.

    nsqd.dat              topics, channels, pauses                  metadata.py
    t.diskqueue.*         messages of t that no channel has yet     queue_files.py, records.py, go_queue.py
    t:c.diskqueue.*       messages waiting in its channel c

Each message becomes a batch of one in the topic's log, and keeps its id and time. The log starts with the backlog of
each channel, which the other channels skip. The topic's own queue follows (layout.py):

    | backlog of c1 | backlog of c2 | the topic's own |
    0               a               b = the high watermark, if the topic is paused or has no channel

`take_over.py` lists the steps of an import, and `marker.py` records them, so a kill at any point does no harm.
"""
