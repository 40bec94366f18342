"""The broker."""

import nsqcommon  # noqa: F401  # it hears NSQ_PURE, which has to happen before any compiled module of ours is imported
