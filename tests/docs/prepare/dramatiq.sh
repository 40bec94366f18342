# A node for the jobs.
cd "$(mktemp -d)"
nsqd --data-path="$(mktemp -d)"
