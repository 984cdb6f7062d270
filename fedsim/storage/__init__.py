"""What a run leaves on disk: the run directory, checkpoints, client states."""
