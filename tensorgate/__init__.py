"""What a user touches: the command line, the supervisor, the edge."""
