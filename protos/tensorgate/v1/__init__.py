"""Package `tensorgate.v1`: the ergonomic API."""
