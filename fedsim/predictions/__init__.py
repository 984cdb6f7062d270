"""What is done with the models of a finished run: predictions, exported files."""
