"""Batches: which requests run together, and the loop that keeps the instances fed."""
