nsqlookupd
nsqd --data-path="$(mktemp -d)" --lookupd-tcp-address=127.0.0.1:4160 --broadcast-address=127.0.0.1
