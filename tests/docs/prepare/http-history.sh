nsqd --data-path="$(mktemp -d)"
curl -d one 'http://127.0.0.1:4151/pub?topic=orders'
