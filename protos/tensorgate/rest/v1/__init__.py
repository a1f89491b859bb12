"""Package `tensorgate.rest.v1`: URLs whose body is not protobuf JSON."""
