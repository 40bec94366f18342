nsqd --data-path="$(mktemp -d)"
curl -X POST 'http://127.0.0.1:4151/topic/create?topic=orders'
curl -X POST 'http://127.0.0.1:4151/channel/create?topic=orders&channel=billing'
