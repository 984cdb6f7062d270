"""``python -m analysis COMMAND`` in a checkout, as ``fedsim COMMAND``."""

from .cli import main

if __name__ == "__main__":
    main(prog_name="python -m analysis")
