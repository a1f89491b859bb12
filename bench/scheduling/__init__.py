"""What the scheduler gives and costs: ``python -m bench.scheduling``. The data plane's models in one process, without a door."""
