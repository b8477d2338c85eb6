"""`python -m urxe ARGUMENTS`: the `urxe` command in this process."""

import os
import sys

from . import executable

if __name__ == "__main__":
    os.execv(executable(), ["urxe", *sys.argv[1:]])
