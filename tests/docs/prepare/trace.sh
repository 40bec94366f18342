# A node to publish to.
cd "$(mktemp -d)"
nsqd --retention-time=24h
