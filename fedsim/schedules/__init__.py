"""Who trains in a round, and what of it the server waits for."""
