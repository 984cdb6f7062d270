"""Tables and figures from run directories: reads their CSV files and nothing else."""

import click


class AnalysisError(click.ClickException):
    """Files that cannot be read, or runs that cannot be compared; the message is one line."""

    exit_code = 2
