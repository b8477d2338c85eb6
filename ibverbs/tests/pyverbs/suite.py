"""Runs the test-suite of python3-pyverbs as Debian ships it, and says of each test in one line how it went.

suite.py SOURCE SCRATCH [ARGUMENT ...]: the suite's directory, an empty one to unpack it to, and arguments of the suite's own runner.
"""
import gzip
import pathlib
import sys
import traceback
import unittest
from importlib.machinery import SourceFileLoader


def unpack(source, target):
    target.mkdir()
    for file in source.iterdir():
        if file.suffix == '.gz':
            (target / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
        elif file.is_file():
            (target / file.name).write_bytes(file.read_bytes())


class Told(unittest.TestResult):
    """Says what became of each test: RESULT, its name, what there is to say of it, between tabs."""

    def say(self, what, test, why=''):
        why = ' '.join(str(why).split())
        # Behind whatever the test itself has printed.
        print(f'\nRESULT\t{what}\t{test.id()}\t{why}', flush=True)

    def said(self, what, test, err):
        traceback.print_exception(*err)
        self.say(what, test, err[1])

    def addSuccess(self, test):
        self.say('passed', test)

    def addSkip(self, test, reason):
        self.say('skipped', test, reason)

    def addFailure(self, test, err):
        self.said('failed', test, err)

    def addError(self, test, err):
        self.said('failed', test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.said('failed', test, err)


source, scratch = map(pathlib.Path, sys.argv[1:3])
tests = scratch / 'tests'
unpack(source, tests)
sys.path.insert(0, str(tests))
sys.argv = ['run_tests.py'] + sys.argv[3:]

from args_parser import parser  # noqa: E402 (it is the suite's)

parser.parse_args()
suite = SourceFileLoader('tests', str(tests / '__init__.py')).load_module()
unittest.defaultTestLoader.loadTestsFromModule(suite).run(Told())
