"""From a composed configuration to a plan: everything needed to run, and nothing run yet. Pure."""
