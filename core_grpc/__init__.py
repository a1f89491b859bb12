"""The core: models behind gRPC. ARCHITECTURE.md in this folder has it on one page."""
