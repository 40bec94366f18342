"""The broker."""

import nsqcommon  # noqa: F401  # it acts on NSQ_PURE, which must happen before we import any compiled module
