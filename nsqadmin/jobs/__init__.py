"""Jobs of queues such as Celery: what they wait for, who runs them, and why they failed. docs/decisions/0043-jobs.md

what workers report, as far as we keep it       run_book.py
listening to their reports on every node        listening.py
reading names in the headers of messages        survey.py
one row per task                                tasks.py
args and kwargs of each library                 arguments.py
for request handlers                            service.py, endpoints.py
"""
