# An nsqd to publish to.
cd "$(mktemp -d)"
nsqd
