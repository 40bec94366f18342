nsqd --data-path="$(mktemp -d)"
