"""Tests of the Python package `urxe`, as it is installed: `packaging/test wheel` runs them."""

pytest_plugins = ["pytester"]
