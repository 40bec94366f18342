# A folder that a file server offers, mounted.
mkdir --parents /var/lib/shared/nsq
