"""Training: one loop for every stage, with its run directory, checkpoints and progress."""
