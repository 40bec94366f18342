"""The nsqd of these tests keeps its messages, and none of them starts Spark."""

from __future__ import annotations

from tests.support.kept import no_other_jvm, node, nsqd, orders

__all__ = ["no_other_jvm", "node", "nsqd", "orders"]
