"""A node's statistics as text, as JSON, and for Prometheus and statsd."""
