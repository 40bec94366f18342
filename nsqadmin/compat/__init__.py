"""NSQ's nsqadmin as programs know it: `/api/*`, `/config/*`, `/render`. It asks the cluster anew for each request."""
