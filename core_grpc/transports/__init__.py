"""Two hosts for the same servicers: an Envoy that hosts Python, and grpc.aio."""
