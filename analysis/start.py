"""Where the command ``fedsim`` starts: it makes sure that ``import fedsim`` finds this project.

``fedsim`` on PyPI is another simulator with the same import name. This file is not part of the
package ``fedsim``, so that it runs where the other one hides it.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import click

OURS = "from fedsim.version import "  # in this project's `fedsim/__init__.py`


def main() -> None:
    """The command ``fedsim``; status 2 where ``import fedsim`` would find the other project."""
    spec = find_spec("fedsim")
    file = Path(spec.origin) if spec is not None and spec.origin is not None else None
    ours = file is None or OURS in file.read_text(encoding="utf-8", errors="replace")
    if file is not None and not ours:
        click.echo(
            f"error: {file.parent} is of the other project fedsim of PyPI, not of this one: "
            "they have the same import name: 'pip uninstall fedsim', then install this one "
            "again ('pip install -e .' in its checkout)",
            err=True,
        )
        sys.exit(2)
    from fedsim.cli import main as command

    command()


if __name__ == "__main__":
    main()
