"""Runs the test-suite of python3-pyverbs as Debian ships it, and says of each test in one line how it went.

suite.py SOURCE SCRATCH ADDRESS [ARGUMENT ...]: the suite's directory, an empty one to unpack it to, the device's address, and
arguments of the suite's own runner.
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
address = sys.argv[3]
tests = scratch / 'tests'
unpack(source, tests)
sys.path.insert(0, str(tests))
sys.argv = ['run_tests.py'] + sys.argv[4:]

from args_parser import parser  # noqa: E402 (it is the suite's)

parser.parse_args()
suite = SourceFileLoader('tests', str(tests / '__init__.py')).load_module()
from tests.base import RDMATestCase  # noqa: E402


def the_devices_address(self, dev, port, index):
    """The suite asks the kernel for the first address of the device's interface. This device has another, and no MAC."""
    self.args.append([dev, port, index, address, '00:00:00:00:00:00'])


RDMATestCase._get_ip_mac = the_devices_address
unittest.defaultTestLoader.loadTestsFromModule(suite).run(Told())
