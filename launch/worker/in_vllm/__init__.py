"""What vLLM's processes import: this folder is on their path, and launch may not be."""
