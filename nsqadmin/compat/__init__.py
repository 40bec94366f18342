"""The HTTP API of NSQ's nsqadmin: `/api/*`, `/config/*`, `/render`. The cluster is asked anew for each request."""
