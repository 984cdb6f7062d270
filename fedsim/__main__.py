"""``python -m fedsim`` is ``fedsim``."""

from __future__ import annotations

import sys

from fedsim.cli import main

sys.exit(main(prog_name="fedsim"))
