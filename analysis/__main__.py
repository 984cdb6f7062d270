"""``python -m analysis COMMAND`` in a checkout, as ``fedsim COMMAND``."""

import sys

from fedsim.core.errors import FedsimError

from .cli import main

if __name__ == "__main__":
    try:
        main(prog_name="python -m analysis")
    except FedsimError as error:
        sys.exit(f"Error: {error}")
