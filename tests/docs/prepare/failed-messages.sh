nsqlookupd
nsqd --data-path="$(mktemp -d)" --lookupd-tcp-address=127.0.0.1:4160 --broadcast-address=127.0.0.1
curl -X POST 'http://127.0.0.1:4151/topic/create?topic=orders'
curl -X POST 'http://127.0.0.1:4151/channel/create?topic=orders&channel=billing'
# One that is buried, as consume-with-curl.md does it.
curl -d three 'http://127.0.0.1:4151/pub?topic=orders'
curl -X POST 'http://127.0.0.1:4151/sub?topic=orders&channel=billing&wait=5s' | grep -o '"id":"[0-9a-f]*' | cut -c7- |
  curl --data-binary @- 'http://127.0.0.1:4151/bury?topic=orders&channel=billing&reason=no+such+customer'
curl 'http://127.0.0.1:4161/lookup?topic=orders'
