"""Python's job queues on nsqd: Celery, taskiq, dramatiq and Django tasks, each a folder or module that only its own
library's users import.

What they share:

    broker URLs                            addresses.py
    queue names as topics                  names.py
    a job's headers, which nsqadmin shows  headers.py
    delays longer than nsqd accepts        delays.py
"""
