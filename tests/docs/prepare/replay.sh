# Something to go back to.
cd "$(mktemp -d)"
nsqd --retention-time=24h
curl -X POST 'http://127.0.0.1:4151/topic/create?topic=orders'
curl -X POST 'http://127.0.0.1:4151/channel/create?topic=orders&channel=billing'
for number in 4710 4711 4712; do curl -d "order $number" 'http://127.0.0.1:4151/pub?topic=orders'; done
