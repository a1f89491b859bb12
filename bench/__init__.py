"""Measurements: ratios taken in one run, with the command that reproduces them. See bench/README.md."""
