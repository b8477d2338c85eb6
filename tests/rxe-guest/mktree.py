"""mktree.py WORK TREE VMLINUX: creates the guest's root file system in TREE from the packages that mkimage
unpacked in WORK/root and WORK/kernel, and writes the decompressed kernel to VMLINUX."""
import glob, lzma, os, re, shutil, struct, subprocess, sys
from btf import Btf

work, tree, vmlinux = sys.argv[1:]
root = work + "/root"


def output(*cmd):
    return subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def glob1(pattern):
    found = glob.glob(pattern)
    if not found:
        sys.exit(f"mktree: nothing matches {pattern}")
    return found[0]


for d in ("bin", "sbin", "usr/bin", "usr/sbin", "lib64", "lib", "etc/libibverbs.d", "proc", "sys", "dev", "tmp", "root", "run"):
    os.makedirs(f"{tree}/{d}")

# Kernel: QEMU starts an ELF vmlinux through its PVH note, so no decompression runs under emulation.
bz = open(glob1(work + "/kernel/boot/vmlinuz-*"), "rb").read()
off, length = struct.unpack_from("<II", bz, 0x248)
off += ((bz[0x1f1] or 4) + 1) * 512
payload = bz[off:off + length]
if payload[:6] == b"\xfd7zXZ\0":
    elf = lzma.LZMADecompressor().decompress(payload)
elif payload[:4] == b"\x28\xb5\x2f\xfd":
    # The uncompressed length follows the zstd stream.
    elf = subprocess.run(["zstd", "-dc"], input=payload[:-4], stdout=subprocess.PIPE, check=True).stdout
else:
    sys.exit("mktree: the kernel is compressed neither with xz nor with zstd")
with open(vmlinux, "wb") as f:
    f.write(elf)



def btf(file, base=None):
    subprocess.run(["objcopy", "--dump-section", f".BTF={work}/btf", file, "/dev/null"], check=True)
    return Btf(open(work + "/btf", "rb").read(), base)


# Modules that are loaded at boot, in this order, and modules for modprobe.
boot = "virtio_mmio virtio_console virtio_net crc32_generic ib_uverbs rdma_ucm ib_umad rdma_rxe".split()
spare = "8021q sch_netem nvme_rdma".split()
mods = {re.sub(r"\.ko(\.xz)?$", "", os.path.basename(f)).replace("-", "_"): f
        for f in glob.glob(work + "/kernel/lib/modules/*/kernel/**/*.ko*", recursive=True)}
# Modules that are built into the kernel need no loading.
with open(glob1(work + "/kernel/lib/modules/*/modules.builtin")) as f:
    builtin = {os.path.basename(line.strip())[:-3].replace("-", "_") for line in f}


def plain(m):
    """Returns the path of module M, after decompressing it if it is compressed, as in Debian 13."""
    if mods[m].endswith(".xz"):
        subprocess.run(["xz", "-d", mods[m]], check=True)
        mods[m] = mods[m][:-3]
    return mods[m]


def closure(m, seen):
    """Appends M to SEEN, after the modules that it needs, and returns SEEN."""
    if m in seen or m in builtin:
        return seen
    if m not in mods:
        sys.exit(f"mktree: no module {m}")
    x = re.search(rb"\0depends=([^\0]*)\0", open(plain(m), "rb").read())
    for d in (x.group(1).decode() if x else "").split(","):
        if d:
            closure(d.replace("-", "_"), seen)
    seen.append(m)
    return seen


md = "/lib/modules/" + os.path.basename(glob1(work + "/kernel/lib/modules/*"))
os.makedirs(tree + md)
loaded = []
for m in boot:
    closure(m, loaded)
with open(f"{tree}/etc/modules.boot", "w") as f:
    f.writelines(f"{md}/{m}.ko\n" for m in loaded)
everything = list(loaded)
for m in spare:
    closure(m, everything)
with open(f"{tree}{md}/modules.dep", "w") as f:
    for m in everything:
        subprocess.run(["strip", "--strip-debug", "-R", ".BTF", "-o", f"{tree}{md}/{m}.ko", plain(m)], check=True)
        f.write(f"{m}.ko: {' '.join(x + '.ko' for x in reversed(closure(m, [])[:-1]))}\n")

# Offsets at which the fixture reads the state of a queue pair (tests/support/guest/requester.rs).
types = btf(plain("rdma_rxe"), btf(vmlinux))
fields = ("req.psn", "comp.psn", "skb_out", "need_req_skb", "req.wait_psn")
with open(f"{tree}/etc/rxe_qp", "w") as f:
    f.writelines(f"{types.offset('rxe_qp', field)}\n" for field in fields)
subprocess.run(["strip", "--strip-debug", vmlinux], check=True)

# Programs and the libraries that they need.
libdirs = [root + d for d in ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu")]
done = set()


def libs_of(file):
    for name in re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", file)):
        lib(name)


def lib(name):
    if name in done:
        return
    done.add(name)
    src = next((f"{d}/{name}" for d in libdirs if os.path.exists(f"{d}/{name}")), None)
    if not src:
        sys.exit(f"mktree: no library {name}")
    dst = f"{tree}/lib64/{name}" if name.startswith("ld-linux") else f"{tree}/lib/{name}"
    shutil.copy(src, dst)
    libs_of(dst)


for pattern in ("/usr/bin/ibv_*", "/usr/bin/ib_*", "/usr/bin/rdma", "/bin/ip", "/sbin/tc", "/usr/bin/tcpdump",
                "/usr/bin/cmtime", "/usr/bin/mckey", "/usr/bin/rdma_client", "/usr/bin/rdma_server", "/usr/bin/rping",
                "/usr/bin/rstream", "/usr/bin/riostream", "/usr/bin/rcopy", "/usr/bin/rdma_xclient", "/usr/bin/rdma_xserver",
                "/usr/bin/ucmatose", "/usr/bin/udaddy", "/usr/bin/udpong", "/usr/bin/qperf",
                "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so"):
    glob1(root + pattern)
    for f in glob.glob(root + pattern):
        dst = tree + f[len(root):]
        os.makedirs(os.path.dirname(dst), exist_ok=True)
        shutil.copy(f, dst)
        libs_of(dst)
for name, dst in (("agent", "/sbin/agent"), ("vsh", "/bin/vsh"), ("linebuf.so", "/lib/linebuf.so"),
                  ("mrdump.so", "/lib/mrdump.so")):
    shutil.copy(f"{work}/{name}", tree + dst)
libs_of(work + "/vsh")
lib("libgcc_s.so.1")        # loaded by pthread_exit()
shutil.copy(root + "/bin/busybox", tree + "/bin/busybox")
for applet in output(root + "/bin/busybox", "--list").split():
    if not any(os.path.lexists(f"{tree}/{d}/{applet}") for d in ("bin", "sbin", "usr/bin", "usr/sbin")):
        os.symlink("/bin/busybox", f"{tree}/bin/{applet}")

for name, text in (("libibverbs.d/rxe.driver", "driver rxe\n"), ("passwd", "root:x:0:0:root:/root:/bin/sh\n"),
                   ("group", "root:x:0:\n"), ("hosts", "127.0.0.1 localhost\n::1 localhost\n"),
                   ("nsswitch.conf", "hosts: files\n")):
    with open(f"{tree}/etc/{name}", "w") as f:
        f.write(text)
