"""``python -m fedsim`` is ``fedsim``."""

import sys

from fedsim.cli import main

sys.exit(main(prog_name="fedsim"))
