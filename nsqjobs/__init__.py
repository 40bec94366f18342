"""Python's job queues on nsqd: Celery, taskiq, dramatiq and Django tasks. Each is a folder that only users of its
library import.

Shared modules:

    broker URLs                            addresses.py
    queue names as topics                  names.py
    a job's headers, which nsqadmin shows  headers.py
    delays longer than nsqd accepts        delays.py
    when to touch a worker's messages      touching.py
    a queue's counts, over HTTP            counts.py
    reports about runs (`report=True`)     reporting.py
    for workers made of threads            link.py, held.py
"""
