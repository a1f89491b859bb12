"""The facade: documentation, probes, `/predict` and the demo's files, as a process of its own that reaches the core over gRPC only."""
