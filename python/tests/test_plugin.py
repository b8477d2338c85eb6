"""The pytest plugin: fixtures, programs on urxe devices, and tests in child processes on them. Needs ibverbs-utils."""

import shutil
import socket
import subprocess
import sys

import pytest

needs_devinfo = pytest.mark.skipif(shutil.which("ibv_devinfo") is None, reason="apt-get install ibverbs-utils")

# Opens the first device of the process's libibverbs, and prints its name.
DEVICE_NAME = '''
import ctypes

def device_names():
    verbs = ctypes.CDLL("libibverbs.so.1")
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    verbs.ibv_get_device_name.argtypes = [ctypes.c_void_p]
    number = ctypes.c_int()
    devices = verbs.ibv_get_device_list(ctypes.byref(number))
    return [verbs.ibv_get_device_name(devices[i]).decode() for i in range(number.value)]
'''


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments, timeout=300)


def test_fixture_gives_connected_nics(urxe_pair):
    a, b = urxe_pair
    target = b.pd.reg_mr(8)
    a.qp.post_write(b"fixture", target.remote())
    a.cq.wait()
    assert target.read(0, 7) == b"fixture"


@pytest.mark.urxe_fabric(virtual_time=True, seed=7, latency=1.0)
def test_marker_has_the_arguments_of_the_fabric(urxe_fabric, urxe_pair, request):
    assert urxe_fabric.is_virtual
    assert urxe_fabric.seed == (request.config.getoption("--urxe-seed") or 7)
    a, b = urxe_pair
    b.qp.post_recv()
    a.qp.post_send()
    b.cq.wait(1)
    assert urxe_fabric.now_ns == 1_000_000_000


def test_failing_test_reports_its_seed_and_the_option_sets_it(pytester: pytest.Pytester):
    pytester.makepyfile(
        """
        def test_fails(urxe_fabric):
            assert urxe_fabric.seed < 0
        """
    )
    result = run(pytester, "--urxe-seed=33")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*33 < 0*", "*fabric with seed 33: --urxe-seed=33 repeats it*"])


@needs_devinfo
def test_program_sees_a_device_with_the_name_and_an_address_of_its_own(urxe_run, urxe_address):
    output = urxe_run(["ibv_devinfo", "-v"], name="mlx5_0").stdout
    assert "mlx5_0" in output and f"::ffff:{urxe_address}" in output
    assert urxe_address.startswith("127.") and urxe_run.address == urxe_address


def test_failing_program_raises_and_its_output_is_shown(urxe_run, capsys):
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        urxe_run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert capsys.readouterr().out == "out\nerr\n\n"
    done = urxe_run(["sh", "-c", "cat; exit $CODE"], check=False, input="in", env={"CODE": "4"})
    assert (done.returncode, done.stdout) == (4, "in")
    with pytest.raises(subprocess.TimeoutExpired):
        urxe_run(["sleep", "600"], timeout=0.2)
    with pytest.raises(TypeError, match="faults is a list"):
        urxe_run(["true"], faults="drop=1")


@needs_devinfo
def test_server_and_client_exchange_messages(urxe_run, tmp_path):
    program = shutil.which("ibv_rc_pingpong")
    capture = tmp_path / "server.pcapng"
    with socket.socket() as unused:
        unused.bind(("", 0))
        port = str(unused.getsockname()[1])
    # The program's ACK timeout of 67 ms is too short for a peer that a busy machine does not schedule.
    env = {"URXE_MIN_ACK_TIMEOUT": "1"}
    server = urxe_run.popen([program, "-g", "0", "-p", port], capture=capture, env=env)
    for _ in range(200):
        client = urxe_run(
            [program, "-g", "0", "-p", port, urxe_run.address], check=False, faults=["drop=10"], env=env
        )
        if "Couldn't connect" not in client.stderr:
            break
    assert client.returncode == 0, client.stderr
    assert "1000 iters" in client.stdout
    assert server.wait(60) == 0 and "1000 iters" in server.stdout.read()
    assert capture.stat().st_size > 100_000


def test_process_that_still_runs_is_killed_at_the_end_of_the_test(pytester: pytest.Pytester):
    pytester.makepyfile(
        """
        import os, pytest
        process = None

        def test_starts(urxe_run):
            global process
            process = urxe_run.popen(["sleep", "600"])
            assert process.poll() is None

        def test_ended():
            assert process.returncode == -9
        """
    )
    run(pytester).assert_outcomes(passed=2)


@pytest.mark.urxe(name="mlx5_7")
def test_marked_test_runs_on_the_device(urxe_address):
    names: dict = {}
    exec(DEVICE_NAME, names)
    assert names["device_names"]() == ["mlx5_7"]
    assert urxe_address.startswith("127.")


def test_results_of_marked_tests_are_those_of_the_child(pytester: pytest.Pytester):
    pytester.makeconftest(
        """
        import os, pytest

        @pytest.fixture(scope="module")
        def process():
            print("set up in", os.getpid())
            yield os.getpid()
        """
    )
    pytester.makepyfile(
        test_one=DEVICE_NAME
        + """
import os, sys, time, pytest

here = pytest.mark.urxe
parent = os.getppid()

def test_unmarked(process):
    assert process == os.getpid() and "URXE_LINK" not in os.environ

@here
def test_passes(process):
    assert process == os.getpid() and device_names() == ["urxe0"]

@here
@pytest.mark.parametrize("text", ["a b", "c::d", "e[f]", "ü"])
def test_parameters(text):
    assert text

class TestClass:
    @here
    def test_method(self):
        assert device_names()

@here
def test_fails():
    value = device_names()
    assert value == ["other"]

@here
@pytest.mark.xfail(reason="known")
def test_expected_failure():
    assert False

@here
def test_skips():
    pytest.skip("not today")

@pytest.fixture
def broken():
    yield
    raise RuntimeError("teardown is broken")

@here
def test_teardown_fails(broken):
    pass

@here
def test_crashes():
    os.abort()

@pytest.mark.urxe(timeout=2)
def test_hangs():
    time.sleep(600)

@pytest.mark.urxe(options=["--no-such-option"])
def test_wrong_option():
    pass

@pytest.mark.urxe(nmae="mlx5_0")
def test_misspelt_argument():
    pass

@pytest.mark.urxe("mlx5_0")
def test_positional_argument():
    pass

def test_last(process):
    assert process == os.getpid()
""",
        test_two="def test_other_module(): pass",
    )
    result = run(pytester, "-v", "--tb=short")
    result.assert_outcomes(passed=10, failed=6, xfailed=1, skipped=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*RuntimeError: teardown is broken",
            "*assert *'urxe0'* == *'other'*",
            "*was killed by signal 6, before the end of the test*",
            "*was killed after 2 s, before the end of the test*",
            "*--no-such-option*",
            "*cannot be run in a child process: *unexpected keyword argument 'nmae'*",
            "*cannot be run in a child process: *positional argument*",
        ]
    )


def test_marked_tests_run_in_parallel(pytester: pytest.Pytester):
    pytest.importorskip("xdist")
    pytester.makeini("[pytest]\naddopts = -n 2 --dist load\n")
    pytester.makepyfile(
        DEVICE_NAME
        + """
import pytest

@pytest.mark.urxe
@pytest.mark.parametrize("number", range(6))
def test_device(number, urxe_address, worker_id):
    assert device_names() == ["urxe0"]

@pytest.mark.parametrize("number", range(6))
def test_program(number, urxe_run):
    assert "LINK=udp:" + urxe_run.address in urxe_run(["env"]).stdout
"""
    )
    run(pytester).assert_outcomes(passed=12)


def test_addresses_of_concurrent_tests_differ(pytester: pytest.Pytester):
    from urxe._pytest import _Address

    addresses = [_Address() for _ in range(100)]
    assert len({address.text for address in addresses}) == 100
    for address in addresses:
        address.release()


def test_plugin_can_be_disabled(pytester: pytest.Pytester):
    pytester.makepyfile("def test_fixture(urxe_pair): pass")
    run(pytester, "-p", "no:urxe").assert_outcomes(errors=1)
    assert "urxe" not in subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:urxe", "--markers"], stdout=subprocess.PIPE, text=True
    ).stdout
