"""`python -m addnorm` is the console script."""

import sys

from addnorm.cli import main

sys.exit(main())
