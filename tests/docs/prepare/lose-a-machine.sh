# A folder that a file server offers, mounted, and a node whose machine is lost.
mkdir --parents /var/lib/shared/nsq /var/lib/nsqd-lost
nsqd --data-path=/var/lib/nsqd-lost --remote=file:///var/lib/shared/nsq --remote-name=orders-1 --ack=remote
curl -d one 'http://127.0.0.1:4151/pub?topic=orders'
pkill --signal KILL --exact nsqd
while pgrep --exact nsqd >/dev/null; do sleep 0.1; done
rm --recursive /var/lib/nsqd-lost
# The data path of a node without a copy.
mkdir /var/lib/nsqd /var/lib/nsqd-standby
nsqd --data-path=/var/lib/nsqd
curl -d two 'http://127.0.0.1:4151/pub?topic=bills'
pkill --exact nsqd
while pgrep --exact nsqd >/dev/null; do sleep 0.1; done
