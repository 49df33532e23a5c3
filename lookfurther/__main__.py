"""`python -m lookfurther`: the same as the command."""

import sys

from lookfurther.cli import main

sys.exit(main())
