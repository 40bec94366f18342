mkdir /var/lib/nsqd
nsqd --data-path=/var/lib/nsqd
curl -d left 'http://127.0.0.1:4151/pub?topic=T'
