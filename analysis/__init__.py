"""Tables and figures from run directories: reads their CSV files and nothing else."""
