"""Python's job queues on nsqd: Celery, taskiq, dramatiq and Django tasks, each a folder that only its own library's
users import.

What they share:

    broker URLs                            addresses.py
    queue names as topics                  names.py
    a job's headers, which nsqadmin shows  headers.py
    delays longer than nsqd accepts        delays.py
    when to touch what a worker holds      touching.py
    a queue's counts, over HTTP            counts.py
    what workers made of threads share     link.py, held.py
"""
