"""`python -m urxe ARGUMENTS`: the `urxe` command in this process."""

import os
import sys

from . import executable

os.execv(executable(), ["urxe", *sys.argv[1:]])
