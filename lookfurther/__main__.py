"""`python -m lookfurther`: the same as the command."""

import sys

from lookfurther.cli.main import main

sys.exit(main())
