"""Images of several sites: the data set of docs/examples/shortcut.py."""

from pathlib import Path

SHORTCUT = f"{Path(__file__).parents[1] / 'docs' / 'examples' / 'shortcut.py'}:shortcut"
"""Its name in settings, and that of the section of its options."""
