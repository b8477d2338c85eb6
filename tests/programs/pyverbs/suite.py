"""Runs the test-suite of python3-pyverbs as Debian ships it, and prints the result of each test in one line.

suite.py SOURCE SCRATCH ADDRESS [ARGUMENT ...]: directory of the suite, directory to unpack it to, address of the device, and
arguments for the runner of the suite.
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


class Reporter(unittest.TestResult):
    """Prints a line for each test: RESULT, the result, the name of the test, and a message, separated by tabs."""

    def report(self, result, test, message=''):
        message = ' '.join(str(message).split())
        # Begins with a newline, as the test itself may have printed a part of a line.
        print(f'\nRESULT\t{result}\t{test.id()}\t{message}', flush=True)

    def report_exception(self, result, test, err):
        traceback.print_exception(*err)
        self.report(result, test, err[1])

    def addSuccess(self, test):
        self.report('passed', test)

    def addSkip(self, test, reason):
        self.report('skipped', test, reason)

    def addFailure(self, test, err):
        self.report_exception('failed', test, err)

    def addError(self, test, err):
        self.report_exception('failed', test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.report_exception('failed', test, err)


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


def get_ip_mac(self, dev, port, index):
    """Replaces the query of the kernel for the first address of the interface: this device has another one, and no MAC."""
    self.args.append([dev, port, index, address, '00:00:00:00:00:00'])


RDMATestCase._get_ip_mac = get_ip_mac
unittest.defaultTestLoader.loadTestsFromModule(suite).run(Reporter())
