"""Harnesses that measure the doors and compare them. Nothing here runs in a server."""
