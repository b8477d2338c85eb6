"""The Python blocks of the guide and of the package's README. Those with tests are run by pytest, the others as programs."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "docs/guide/python.md", ROOT / "python/README.md"]
BLOCKS = [block for page in PAGES for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)]


def test_pages_have_blocks():
    assert len(BLOCKS) >= 5


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs(number: int, tmp_path: pathlib.Path, pytester: pytest.Pytester):
    block = BLOCKS[number]
    if "def test_" in block:
        pytester.makepyfile(test_block=block)
        result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=300)
        assert result.ret == 0 and "failed" not in result.parseoutcomes()
    else:
        subprocess.run([sys.executable, "-c", block], check=True, cwd=tmp_path, timeout=300)
