# A node to move to.
cd "$(mktemp -d)"
nsqd --data-path="$(mktemp -d)"
