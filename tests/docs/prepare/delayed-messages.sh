nsqlookupd
nsqd --data-path="$(mktemp -d)" --lookupd-tcp-address=127.0.0.1:4160 --broadcast-address=127.0.0.1
curl -X POST 'http://127.0.0.1:4151/topic/create?topic=reminders'
curl -X POST 'http://127.0.0.1:4151/channel/create?topic=reminders&channel=mail'
curl 'http://127.0.0.1:4161/lookup?topic=reminders'
