"""Our own packages."""
