"""The former name of `nsqpytest`, which comes with nsq-suite. It will be removed in 0.3.0."""

import warnings

from nsqpytest import Broker, nsq_broker, running_broker

__all__ = ["Broker", "nsq_broker", "running_broker"]

warnings.warn(
    "nsqclient.pytest_plugin is now nsqpytest; the old name will be removed in 0.3.0", DeprecationWarning, stacklevel=2
)
