"""The command in the package, and the types of the API."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import urxe

TESTS = pathlib.Path(__file__).parent


def test_command_of_the_package_runs_as_a_module(tmp_path: pathlib.Path):
    def version(*command: str) -> str:
        # In the source tree, `-m` would find the package without its extension module.
        return subprocess.run([*command, "--version"], stdout=subprocess.PIPE, text=True, check=True, cwd=tmp_path).stdout

    assert version(urxe.executable()) == version(sys.executable, "-m", "urxe")


def test_version_of_the_package_is_that_of_the_command():
    from importlib.metadata import version

    printed = subprocess.run([urxe.executable(), "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert printed.split()[1] == version("urxe")


def test_stubs_are_those_of_the_module(tmp_path: pathlib.Path):
    pytest.importorskip("mypy")
    # A default that is the number of an enumeration, and a method that classes have from Python 3.12.
    (tmp_path / "allowed").write_text("urxe._native.QpOptions.__new__\nurxe._native.Region.__buffer__\n")
    command = [sys.executable, "-m", "mypy.stubtest", "urxe", "--allowlist", "allowed", "--ignore-unused-allowlist", "--concise"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_classes_and_methods_have_docstrings():
    for name, cls in vars(urxe._native).items():
        if isinstance(cls, type):
            assert cls.__doc__, name
            for member, value in vars(cls).items():
                assert member.startswith("_") or value.__doc__, f"{name}.{member}"


def mypy(directory: pathlib.Path, target: str) -> str:
    """Returns the output of `mypy --strict` for a file or directory; it is empty if there are no errors."""
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", f"--cache-dir={directory}/cache", target]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=directory).stdout


def test_example_has_the_types_of_the_stubs(tmp_path: pathlib.Path):
    # The stubs are found in the installed package, as by a user's mypy.
    assert mypy(tmp_path, str(TESTS / "typed_example.py")) == ""


def test_types_of_the_package_are_complete(tmp_path: pathlib.Path):
    # A copy, because mypy reports no errors for installed packages.
    shutil.copytree(pathlib.Path(urxe.__file__).parent, tmp_path / "urxe", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    assert mypy(tmp_path, "urxe") == ""


def test_wrong_types_are_found(tmp_path: pathlib.Path):
    wrong = "import urxe\na, b = urxe.pair()\na.cq.wait().imm + 1\na.qp.post_recv(b'x')\nurxe.Fabric(los=1.0)\n"
    (tmp_path / "wrong.py").write_text(wrong)
    assert re.findall(r"wrong.py:(\d): error: .*\[([a-z-]+)\]", mypy(tmp_path, "wrong.py")) == [
        ("3", "operator"),
        ("4", "arg-type"),
        ("5", "call-arg"),
    ]


def test_example_runs():
    subprocess.run([sys.executable, TESTS / "typed_example.py"], check=True, timeout=60)
