"""Memory that a caller shares with the server, so that tensors need not travel: Triton's system and CUDA shared-memory extensions."""
