"""`python -m addnorm` is the console script."""

import sys

from addnorm.cli import run

sys.exit(run())
