"""The server: a cohort of updates becomes one step of the global model."""
