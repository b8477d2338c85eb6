"""Containers for the tests of packages: umoci unpacks images, and runc runs them in a user namespace, whose IDs 0 to 65535 are
unprivileged ones of the machine."""
import concurrent.futures.thread  # whole, because the lazy import fails where the user cannot read the installation
import copy
import ctypes
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWUSER = 0x20000, 0x40000000, 0x10000000
FIRST_ID, IDS = 100000, 65536

# Process that keeps a network namespace.
HOLDER = "ip link set lo up; echo up; exec sleep 600"


def require(*programs):
    """Exits with a message unless these programs are installed and the caller is root."""
    for program, package in programs:
        if subprocess.run(["which", program], stdout=subprocess.DEVNULL).returncode:
            sys.exit(f"{sys.argv[0]}: {program} not found: apt-get install {package}")
    if os.geteuid() != 0:
        sys.exit(f"{sys.argv[0]}: needs root, to map the IDs of a user namespace")


def directory():
    """Returns a new directory that belongs to root of the user namespace."""
    path = tempfile.mkdtemp(prefix="urxe-image-")
    os.chmod(path, 0o755)
    os.chown(path, FIRST_ID, FIRST_ID)
    return path


def enter_user_namespace():
    """Moves this process into a new user namespace as its root, who has no privilege on the machine."""
    ready, mapped = os.pipe(), os.pipe()
    pid = os.getpid()
    helper = os.fork()
    if helper == 0:
        os.read(ready[0], 1)
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{pid}/{name}", "w") as file:
                file.write(f"0 {FIRST_ID} {IDS}")
        os.write(mapped[1], b"x")
        os._exit(0)
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    os.write(ready[1], b"x")
    os.read(mapped[0], 1)
    os.waitpid(helper, 0)
    os.setgroups([])
    os.setgid(0)
    os.setuid(0)


def runc(path, *command):
    """Returns the command line of runc for the container of a bundle."""
    return ["runc", "--root", f"{path}/state", "--rootless", "true", *command, path.strip("/").replace("/", "-")]


class Image:
    """An unpacked image."""

    def __init__(self, archive, base):
        layout = os.path.join(base, "layout")
        os.makedirs(layout)
        subprocess.run(["tar", "-xf", archive, "-C", layout], check=True)
        index = json.load(open(f"{layout}/index.json"))["manifests"][0]
        manifest = self.blob(layout, index)
        self.config = self.blob(layout, manifest["config"])["config"]
        self.layers = [layer["size"] for layer in manifest["layers"]]
        self.bundle = os.path.join(base, "bundle")
        # umoci accepts no colon in a tag, and the archive's is `urxe:0.1.0`.
        with open(f"{layout}/index.json", "w") as file:
            index["annotations"]["org.opencontainers.image.ref.name"] = "image"
            json.dump({"schemaVersion": 2, "manifests": [index]}, file)
        os.makedirs(self.bundle)
        # Not `umoci unpack`, which also computes a checksum of each file.
        rootfs = f"{self.bundle}/rootfs"
        for arguments in (["unpack", "--image", f"{layout}:image", rootfs],
                          ["runtime-config", "--image", f"{layout}:image", "--rootfs", rootfs, f"{self.bundle}/config.json"]):
            done = subprocess.run(["umoci", "raw", *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode:
                sys.exit(done.stdout)

    @staticmethod
    def blob(layout, descriptor):
        return json.load(open(f"{layout}/blobs/{descriptor['digest'].replace(':', '/')}"))

    def container(self, path, namespace, arguments, command=None, mounts=(), user=None):
        """Writes the bundle of a container in the network namespace of a process: without capabilities, on a read-only root, with
        what `docker run IMAGE ARGUMENTS` executes, or with another command in place of the entry point. A mount is a directory or
        file of the machine and its path in the container; `/tmp` is empty without one."""
        spec = copy.deepcopy(json.load(open(f"{self.bundle}/config.json")))
        process = spec["process"]
        process["terminal"] = False
        process["args"] = (command or self.config.get("Entrypoint") or []) + arguments
        process["capabilities"] = {kind: [] for kind in process["capabilities"]}
        process["noNewPrivileges"] = True
        if user is not None:
            process["user"] = {"uid": user, "gid": user}
        # umoci sets a limit of 1024 descriptors, which container engines do not; the kernel counts the descriptors in flight of all
        # containers of a user together, 64 for each address of a device.
        process.pop("rlimits", None)
        spec["root"] = {"path": f"{self.bundle}/rootfs", "readonly": True}
        kinds = ["pid", "ipc", "uts", "mount"]
        spec["linux"] = {key: spec["linux"][key] for key in ("maskedPaths", "readonlyPaths")}
        spec["linux"]["namespaces"] = [{"type": kind} for kind in kinds]
        spec["linux"]["namespaces"].append({"type": "network", "path": f"/proc/{namespace}/ns/net"})
        kept = [mount for mount in spec["mounts"] if mount["destination"] in ("/proc", "/dev", "/dev/pts", "/dev/shm")]
        kept.append({"destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", "nosuid", "noexec", "nodev", "ro"]})
        if not any(destination == "/tmp" for _, destination in mounts):
            kept.append({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777"]})
        for source, destination in mounts:
            kept.append({"destination": destination, "type": "bind", "source": source, "options": ["rbind", "nosuid", "nodev"]})
        spec["mounts"] = kept
        os.makedirs(path)
        with open(f"{path}/config.json", "w") as file:
            json.dump(spec, file)

    @staticmethod
    def start(path):
        """Starts the container of a bundle, with output into the file `out` in it."""
        with open(f"{path}/out", "w") as out:
            return subprocess.Popen(runc(path, "run", "--bundle", path), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)


def without_privilege(function):
    """Runs a function in a child process in a new user namespace, and exits if it fails."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            enter_user_namespace()
            function()
            status = 0
        except SystemExit as exit:
            print(exit.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)
    if os.waitpid(child, 0)[1]:
        sys.exit(1)


def output(path):
    return open(f"{path}/out").read()


class Namespace:
    """A network namespace that a sleeping process keeps."""

    def __init__(self):
        self.process = subprocess.Popen(["unshare", "-n", "sh", "-c", HOLDER], stdout=subprocess.PIPE)
        self.process.stdout.readline()
        self.pid = self.process.pid

    def run(self, command):
        subprocess.run(["nsenter", "-t", str(self.pid), "-n", "sh", "-ec", command], check=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def write_bw(image, path, server_namespace, client_namespace, address, prefix, **options):
    """Runs ib_write_bw between two containers; the client starts again while no server listens. Returns an empty text or
    what failed. `prefix` precedes `ib_write_bw` in the arguments."""
    program = prefix + ["ib_write_bw", "-n", "1000"]
    image.container(f"{path}/server", server_namespace, program, **options)
    server = image.start(f"{path}/server")
    try:
        end = time.monotonic() + 300
        for attempt in itertools.count():
            client = f"{path}/client{attempt}"
            image.container(client, client_namespace, program + [address], **options)
            status = image.start(client).wait(300)
            if status == 0 and "BW average" in output(client):
                return "" if server.wait(300) == 0 else "server: " + output(f"{path}/server")
            if "Couldn't connect" not in output(client) or server.poll() is not None or time.monotonic() > end:
                return f"server: {output(path + '/server')}\nclient: {output(client)}"
    finally:
        if server.poll() is None:
            # A signal to runc would reach the first process of the container, which ignores it.
            subprocess.run(runc(f"{path}/server", "delete", "--force"), stderr=subprocess.DEVNULL)
            server.wait()


def repeat(name, count, run):
    """Calls `run` with 0, 1, … `count` - 1, 16 at once, prints how many calls returned an empty text, and exits if not all did."""
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        failures = [failure for failure in pool.map(run, range(count)) if failure]
    print(f"{name}: {count - len(failures)} of {count} runs passed in {time.monotonic() - begin:.0f} s", flush=True)
    if failures:
        sys.exit(failures[0])
