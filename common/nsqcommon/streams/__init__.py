"""Layers between a socket and the protocol: TLS, snappy and deflate. Plain code, bytes in and bytes out."""
