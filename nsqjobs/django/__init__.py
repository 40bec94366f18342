"""Django's tasks on nsqd.

    INSTALLED_APPS = [..., "nsqjobs.django"]
    TASKS = {"default": {"BACKEND": "nsqjobs.django.NsqBackend", "OPTIONS": {"url": "nsq://127.0.0.1:4150"}}}

and `manage.py nsq_worker`. With Django before 6.0, the package django-tasks has the API.

    settings, enqueueing           backend.py
    a task as a message            messages.py
    results in the database        results.py, models.py
    running tasks                  worker.py, running.py
    priorities                     priorities.py, queue.py
    groups                         groups.py
"""

from nsqjobs.django.backend import NsqBackend
from nsqjobs.django.groups import nsq_group_by

__all__ = ["NsqBackend", "nsq_group_by"]
