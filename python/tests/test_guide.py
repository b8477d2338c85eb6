"""The Python blocks of the guide. Those with tests are run by pytest, the others as programs."""

import pathlib
import re
import subprocess
import sys

import pytest

GUIDE = pathlib.Path(__file__).parents[2] / "docs/guide/python.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)


def test_guide_has_blocks():
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs(number: int, tmp_path: pathlib.Path, pytester: pytest.Pytester):
    block = BLOCKS[number]
    if "def test_" in block:
        pytester.makepyfile(test_block=block)
        result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=300)
        assert result.ret == 0 and "failed" not in result.parseoutcomes()
    else:
        subprocess.run([sys.executable, "-c", block], check=True, cwd=tmp_path, timeout=300)
