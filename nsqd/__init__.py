"""nsqd, the daemon that receives, stores and delivers messages."""

import nsqcommon  # noqa: F401  # it acts on NSQ_PURE, which must happen before we import any compiled module
