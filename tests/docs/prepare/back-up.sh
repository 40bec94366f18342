# A data path of a stopped nsqd.
mkdir /var/lib/nsqd
nsqd --data-path=/var/lib/nsqd
curl -d one 'http://127.0.0.1:4151/pub?topic=orders'
nsqd --data-path="$(mktemp -d)"
