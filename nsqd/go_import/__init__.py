"""Taking over the data path of a Go nsqd, once, before anything is served.

    nsqd.dat              topics, channels, pauses                  metadata.py
    t.diskqueue.*         what no channel of t has got yet          queue_files.py, records.py, go_queue.py
    t:c.diskqueue.*       what waits in its channel c

A message becomes a batch of one in the topic's log, with its own id and time. First come the channels' backlogs, one
after the other, each skipped by the other channels; then the topic's own queue (layout.py):

    | backlog of c1 | backlog of c2 | the topic's own |
    0               a               b = where H stands, if the topic is paused or has no channel

`take_over.py` tells the steps, `marker.py` what is remembered of them, so that a kill at any point costs nothing.
"""
