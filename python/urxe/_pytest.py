"""The pytest plugin: mock NICs as fixtures, programs on urxe devices, and tests that run on them themselves."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pytest

from . import executable
from ._native import Endpoint, Fabric

# Set in a test's child process: the file for its reports, and the address of its devices.
_REPORTS = "URXE_PYTEST_REPORTS"
_ADDRESS = "URXE_PYTEST_ADDRESS"
_MARKERS = (
    "urxe(name=None, personality=None, faults=(), capture=None, seed=None, options=(), timeout=300): run the test in a child "
    "process under `urxe run`, so that libibverbs and librdmacm in the test process are those of urxe",
    "urxe_fabric(virtual_time=False, seed=0, latency=0.0, loss=0.0, ...): arguments of urxe.Fabric for the fixtures urxe_fabric "
    "and urxe_pair",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --urxe-seed, and the ini value `urxe_child_options`."""
    group = parser.getgroup("urxe")
    group.addoption("--urxe-seed", type=int, metavar="N", help="seed of the fixture urxe_fabric, in place of the marker's")
    help_text = "options of pytest for the child processes of tests with the marker urxe"
    parser.addini("urxe_child_options", help_text, type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers; in the child process of a test, the collector of its reports."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    if _REPORTS in os.environ:
        config.pluginmanager.register(_ReportWriter(config, os.environ[_REPORTS]))


class _ReportWriter:
    """Writes the reports of a test to a file, for the parent process."""

    def __init__(self, config: pytest.Config, path: str) -> None:
        self.config, self.path = config, path

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        # Not JSON, which has no tuples.
        with open(self.path, "ab") as file:
            pickle.dump(data, file)


class _Address:
    """A loopback address that no other test of this machine has, until it is released."""

    def __init__(self) -> None:
        choose = random.SystemRandom()
        while True:
            numbers = (choose.randint(1, 254), choose.randint(0, 255), choose.randint(1, 254))
            self.text = "127.{}.{}.{}".format(*numbers)
            # The name of a bound Unix socket is unique in the network namespace, and free after a crash.
            self._lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                self._lock.bind(f"\0urxe-pytest-{self.text}")
                return
            except OSError:
                self._lock.close()

    def release(self) -> None:
        self._lock.close()


def _command(
    address: str,
    *,
    name: str | None = None,
    personality: str | None = None,
    faults: Sequence[str] = (),
    capture: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    options: Sequence[str] = (),
) -> list[str]:
    """Returns `urxe run` with its options."""
    if isinstance(faults, str):
        raise TypeError("faults is a list of rules, not a string")
    command = [executable(), "run", "--ip", address]
    given = {"--name": name, "--personality": personality, "--capture": capture, "--seed": seed}
    for option, value in given.items():
        if value is not None:
            command += [option, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    for rule in faults:
        command += ["--fault", rule]
    return [*command, *options, "--"]


class Runner:
    """Runs programs on urxe devices: the value of the fixture `urxe_run`."""

    def __init__(self, address: str) -> None:
        self.address = address
        """Loopback address of the devices, which no other test has."""
        self._processes: list[subprocess.Popen[str]] = []

    def __call__(
        self,
        program: Sequence[str | os.PathLike[str]],
        *,
        check: bool = True,
        timeout: float = 60.0,
        name: str | None = None,
        personality: str | None = None,
        faults: Sequence[str] = (),
        capture: str | os.PathLike[str] | None = None,
        seed: int | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program under `urxe run`, and returns its output and exit status.

        Raises CalledProcessError if the status is not 0 and `check` is true, and TimeoutExpired after `timeout` seconds.
        `env` has variables to add to the environment; `options` are further ones of `urxe run`.
        """
        command = _command(
            self.address, name=name, personality=personality, faults=faults, capture=capture, seed=seed, options=options
        )
        done = subprocess.run(
            [*command, *[os.fspath(part) for part in program]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=timeout,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            input=input,
        )
        if check and done.returncode != 0:
            # The exception's message has no output; pytest shows what is printed.
            print(done.stdout, done.stderr, sep="")
            done.check_returncode()
        return done

    def popen(
        self,
        program: Sequence[str | os.PathLike[str]],
        *,
        name: str | None = None,
        personality: str | None = None,
        faults: Sequence[str] = (),
        capture: str | os.PathLike[str] | None = None,
        seed: int | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = subprocess.STDOUT,
    ) -> subprocess.Popen[str]:
        """Starts a program under `urxe run`, such as a server. It is killed at the end of the test if it still runs."""
        command = _command(
            self.address, name=name, personality=personality, faults=faults, capture=capture, seed=seed, options=options
        )
        process = subprocess.Popen(
            [*command, *[os.fspath(part) for part in program]],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            env={**os.environ, **(env or {})},
            cwd=cwd,
        )
        self._processes.append(process)
        return process

    def close(self) -> None:
        """Kills the processes that still run."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def urxe_address() -> Iterator[str]:
    """Loopback address that no other test has; in a test with the marker urxe, the address of its devices."""
    if _ADDRESS in os.environ:
        yield os.environ[_ADDRESS]
        return
    address = _Address()
    yield address.text
    address.release()


@pytest.fixture
def urxe_run(urxe_address: str) -> Iterator[Runner]:
    """Function that runs a program on urxe devices: `urxe_run(["ibv_devinfo"]).stdout`; see Runner."""
    runner = Runner(urxe_address)
    yield runner
    runner.close()


@pytest.fixture
def urxe_fabric(request: pytest.FixtureRequest) -> Fabric:
    """Fabric without NICs, with the arguments of the marker urxe_fabric. A failing test reports its seed."""
    marker = request.node.get_closest_marker("urxe_fabric")
    arguments: dict[str, Any] = dict(marker.kwargs) if marker else {}
    seed = request.config.getoption("--urxe-seed")
    if seed is not None:
        arguments["seed"] = seed
    fabric = Fabric(**arguments)
    request.node.add_report_section("setup", "urxe", f"fabric with seed {fabric.seed}: --urxe-seed={fabric.seed} repeats it")
    return fabric


@pytest.fixture
def urxe_pair(urxe_fabric: Fabric) -> tuple[Endpoint, Endpoint]:
    """Two mock NICs with connected queue pairs, on the fabric of the fixture urxe_fabric."""
    return urxe_fabric.pair()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Runs a test with the marker urxe in a child process, and reports its results as if it had run here."""
    marker = item.get_closest_marker("urxe")
    if marker is None or _REPORTS in os.environ or not isinstance(item, pytest.Function):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    try:
        reports = _run_in_child(item, *marker.args, **marker.kwargs)
    except Exception as error:
        # For example a misspelt argument of the marker, which must not end the session.
        reports = [_failure(item, f"The test cannot be run in a child process: {error}")]
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    if (failed := _tear_down(item, nextitem)) is not None:
        item.ihook.pytest_runtest_logreport(report=failed)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


# The child has the module search path of this process, whichever way pytest was started.
_CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def _run_in_child(item: pytest.Function, *, timeout: float = 300.0, **options: Any) -> list[pytest.TestReport]:
    """Runs a test in a child process under `urxe run`, and returns its reports."""
    config = item.config
    address = _Address()
    try:
        with tempfile.TemporaryDirectory(prefix="urxe-pytest-") as directory:
            command = [*_command(address.text, **options), sys.executable, "-c", _CHILD, json.dumps(sys.path)]
            command += _child_arguments(item, directory)
            file = os.path.join(directory, "reports")
            environment = {**os.environ, _REPORTS: file, _ADDRESS: address.text}
            # A file, because processes that the test leaves behind would keep a pipe open.
            output_path = os.path.join(directory, "output")
            with open(output_path, "wb") as output:
                is_captured = config.getoption("capture") != "no"
                end = _wait(command, environment, timeout, output.fileno() if is_captured else None, config)
            with open(output_path, encoding="utf-8", errors="replace") as text:
                printed = text.read()
            reports = _read_reports(config, file)
            if not any(report.when == "teardown" for report in reports):
                reports.append(_failure(item, f"The child process of the test {end}, before the end of the test.\n{printed}"))
            return reports
    finally:
        address.release()


def _child_arguments(item: pytest.Function, directory: str) -> list[str]:
    """Returns pytest's arguments for the child process of a test: the arguments of this process that change results."""
    config = item.config
    # pytest resolves node IDs relative to the current directory, so the file is absolute.
    arguments = [f"{item.path}::{item.nodeid.partition('::')[2]}", "-q", "--rootdir", str(config.rootpath)]
    if config.inipath is not None:
        arguments += ["-c", str(config.inipath)]
    for value in config.getoption("override_ini") or ():
        arguments += ["-o", value]
    arguments += ["-o", f"cache_dir={directory}/cache"]
    for value in config.getoption("plugins") or ():
        # A worker of pytest-xdist has no terminal plugin, but the child needs its options.
        if value != "no:terminal":
            arguments += ["-p", value]
    if config.pluginmanager.hasplugin("xdist"):
        arguments += ["-n", "0"]
    for value in config.getoption("pythonwarnings") or ():
        arguments += ["-W", value]
    for option, name in [("--import-mode", "importmode"), ("--capture", "capture"), ("--urxe-seed", "--urxe-seed")]:
        value = config.getoption(name)
        if value is not None:
            arguments.append(f"{option}={value}")
    traceback_style = config.getoption("tbstyle", None)
    if traceback_style is not None:
        arguments.append(f"--tb={traceback_style}")
    return [*arguments, *config.getini("urxe_child_options")]


def _wait(
    command: list[str], environment: dict[str, str], timeout: float, output: int | None, config: pytest.Config
) -> str:
    """Runs the child process of a test, and returns how it ended."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        env=environment,
        cwd=config.invocation_params.dir,
        start_new_session=True,
    )
    try:
        status = process.wait(timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"was killed after {timeout} s"
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"


def _read_reports(config: pytest.Config, path: str) -> list[pytest.TestReport]:
    """Returns the reports that a child process has written."""
    reports: list[pytest.TestReport] = []
    if os.path.exists(path):
        with open(path, "rb") as file:
            while True:
                try:
                    data = pickle.load(file)
                except (EOFError, pickle.UnpicklingError):
                    # The end, or an incomplete report of a process that was killed.
                    break
                report = config.hook.pytest_report_from_serializable(config=config, data=data)
                reports.append(cast(pytest.TestReport, report))
    return reports


def _failure(item: pytest.Item, message: str) -> pytest.TestReport:
    """Returns the report of a test whose child process has not reported a result."""
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords={item.name: 1},
        outcome="failed",
        longrepr=message,
        when="call",
    )


def _tear_down(item: pytest.Function, nextitem: pytest.Item | None) -> pytest.TestReport | None:
    """Tears down what earlier tests have set up in this process and the next test does not need. Returns a report if that
    fails."""
    # pytest has no public function for this, apart from the teardown hook, for which the item would have to be set up here.
    call = pytest.CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(nextitem), when="teardown")
    return None if call.excinfo is None else pytest.TestReport.from_item_and_call(item, call)
