"""What a node tells its operators."""
