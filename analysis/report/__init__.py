"""The report: one HTML page from run directories."""
