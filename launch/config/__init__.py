"""What the user says: the command line, the composed configuration, and where each value was said."""
