"""Declared pre- and post-processing: images, labels, derived outputs."""
