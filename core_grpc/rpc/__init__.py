"""The doors: protobuf, JSON and HTTP bodies to the core's own types and back."""
