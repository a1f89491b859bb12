"""The contract, and the code generated from it."""
