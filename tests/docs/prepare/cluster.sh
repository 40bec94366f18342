mkdir /var/lib/nsqd
# An authority, and what it has signed for each node.
curve="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
openssl req -x509 $curve -keyout ca.key -out ca.pem -days 1 -subj /CN=authority 2>/dev/null
for name in lookup1 node1; do
  openssl req $curve -keyout $name.key -out $name.csr -subj /CN=$name.example 2>/dev/null
  openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -days 1 -out $name.pem -extfile <(echo "subjectAltName=DNS:$name.example") 2>/dev/null
done
