"""taskiq on nsqd: docs/how-to/taskiq.md.

kick, listen, start and stop                    broker.py
a task's message from delivery to its answer    deliveries.py
what cannot be run is buried                    formatter.py
labels that the broker reads                    labels.py
schedules by time                               schedules.py
"""

from nsqjobs.taskiq.broker import NsqBroker
from nsqjobs.taskiq.schedules import NsqScheduleSource

__all__ = ["NsqBroker", "NsqScheduleSource"]
