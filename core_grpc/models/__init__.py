"""Models: what is in the repository, and the versions that answer."""
