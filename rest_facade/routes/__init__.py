"""The facade's routes, one module for each topic."""
