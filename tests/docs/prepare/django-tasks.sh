# A node for the tasks.
cd "$(mktemp -d)"
nsqd --data-path="$(mktemp -d)"
