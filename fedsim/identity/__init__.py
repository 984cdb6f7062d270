"""Is it the same run: its settings, the code of its user, its data and its surroundings."""
