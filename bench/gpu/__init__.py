"""The GPU report: what runs on a machine with an NVIDIA GPU, and how fast. ``python -m bench.gpu_report``."""
