"""What a run leaves behind and what the next one finds: finished models, checkpoints, locks, caches."""
