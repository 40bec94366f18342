"""Takes over the data path of a Go nsqd, once, before anything is served.

    nsqd.dat              topics, channels, pauses                  metadata.py
    t.diskqueue.*         messages of t that no channel has yet     queue_files.py, records.py, go_queue.py
    t:c.diskqueue.*       messages that wait in its channel c

A message becomes a batch of one in the topic's log, with its own id and time. First come the channels' backlogs, one
after the other, each skipped by the other channels; then the topic's own queue (layout.py):

    | backlog of c1 | backlog of c2 | the topic's own |
    0               a               b = where H stands, if the topic is paused or has no channel

H is the end of what was handed over to channels. `take_over.py` lists the steps, and `marker.py` records them, so that
a kill at any point costs nothing.
"""
