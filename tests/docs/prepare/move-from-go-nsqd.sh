mkdir /var/lib/nsqd
