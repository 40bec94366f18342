"""What may lie between a socket and the protocol: TLS, snappy, deflate. Plain code, bytes in and bytes out."""
