"""``python -m limbeck``."""

import sys

from limbeck.cli import main

sys.exit(main())
