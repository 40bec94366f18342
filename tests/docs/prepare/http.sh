nsqlookupd
policy="$(mktemp)"
printf '[[policy]]\nchannel = "billing"\nshare = "group"\n' > "$policy"
nsqd --data-path="$(mktemp -d)" --lookupd-tcp-address=127.0.0.1:4160 --policy-file="$policy"
