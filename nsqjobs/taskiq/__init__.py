"""taskiq on nsqd: docs/how-to/taskiq.md.

kick, listen, start and stop                    broker.py
a task's message from delivery to its answer    deliveries.py
bury messages that can't run                    formatter.py
labels for the broker                           labels.py
reports about runs, and burying failures        reports.py, runs.py
schedules by time                               schedules.py
"""

from nsqjobs.taskiq.broker import NsqBroker
from nsqjobs.taskiq.schedules import NsqScheduleSource

__all__ = ["NsqBroker", "NsqScheduleSource"]
