"""The `urxe` command: a software RoCEv2 NIC in userspace."""

import os
import shutil
import sysconfig

__all__ = ["executable"]


def executable() -> str:
    """Returns the path of the `urxe` executable of this package.

    Raises FileNotFoundError if the executable has been removed.
    """
    candidates = (sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user"))
    path = shutil.which("urxe", path=os.pathsep.join(candidates))
    if path is None:
        raise FileNotFoundError(f"no urxe in {' or '.join(candidates)}: reinstall the package urxe")
    return path
