"""`python -m addnorm` is `addnorm`."""

import sys

from addnorm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
