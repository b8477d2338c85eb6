//! Tests of `urxe run` with programs whose libibverbs is not found by an ordinary loader: sanitizers, virtual
//! environments, cleaned environments, privileged programs, other architectures and C libraries, scripts.
//! Each program finds urxe's device, or is refused in one line that says what to do. `bundled.rs` has those
//! with a copy of libibverbs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use urxe_test_support::programs::{Running, addresses, built, library, preload, text, urxe};
use urxe_test_support::requirement;

/// Source of a program that prints the number of devices and the name of the first one, which it uses.
const DEVICES: &str = r#"
#include <infiniband/verbs.h>
#include <stdio.h>
int main(void)
{
	static char buffer[4096];
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	if (!list || count == 0) {
		printf("no device\n");
		return 1;
	}
	struct ibv_context *context = ibv_open_device(list[0]);
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	struct ibv_mr *mr = pd ? ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE) : NULL;
	printf("%d %s%s\n", count, ibv_get_device_name(list[0]), mr ? "" : " fails");
	if (mr)
		ibv_dereg_mr(mr), ibv_dealloc_pd(pd), ibv_close_device(context);
	ibv_free_device_list(list);
	return !mr;
}
"#;

/// Output of [`DEVICES`] on urxe.
const FOUND: &str = "1 urxe0\n";

/// Python expression that prints the same, with the library in `library`.
const PYTHON: &str = "
import ctypes
count = ctypes.c_int()
library.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
library.ibv_get_device_name.restype = ctypes.c_char_p
devices = library.ibv_get_device_list(ctypes.byref(count))
print(count.value, library.ibv_get_device_name(ctypes.c_void_p(devices[0])).decode())
";

const EMPTY: &str = "int main(void) { return 0; }\n";

/// Directory with the programs of a test.
struct Programs(tempfile::TempDir);

impl Programs {
    fn new() -> Programs {
        Programs(tempfile::tempdir().unwrap())
    }

    /// Returns a directory with the program `devices`.
    fn with_devices(options: &[&str]) -> Programs {
        let programs = Programs::new();
        programs.compile("cc", "devices", DEVICES, &[options, &["-libverbs"]].concat());
        programs
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn at(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn compile(&self, compiler: &str, name: &str, source: &str, options: &[&str]) {
        let file = self.path(&format!("{name}.c"));
        fs::write(&file, source).unwrap();
        check(Command::new(compiler).arg("-g").arg(&file).arg("-o").arg(self.path(name)).args(options));
    }

    /// Creates an executable file with the given text. A shell writes it: if this process had it open for
    /// writing, a child that another thread forks would inherit the descriptor, and the file could not be
    /// executed (ETXTBSY).
    fn script(&self, name: &str, text: &str) {
        let write = "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\"";
        check(Command::new("sh").args(["-c", write]).arg(self.path(name)).arg(text));
    }

    /// Runs a command in the directory under `urxe run`.
    fn run(&self, command: &[&str]) -> Output {
        self.run_with(command, |_| {})
    }

    fn run_with(&self, command: &[&str], set_up: impl FnOnce(&mut Command)) -> Output {
        let [address, _] = addresses();
        let mut run = urxe(&[&["run", "--ip", &address, "--"], command].concat());
        run.current_dir(self.0.path());
        set_up(&mut run);
        Running::new(run).finish(Duration::from_secs(60))
    }

    /// Checks that a command prints what [`DEVICES`] prints on urxe, and nothing else.
    fn check_finds_device(&self, command: &[&str]) {
        let out = self.run(command);
        assert_eq!(text(&out), FOUND, "{command:?}: {}", out.status);
    }

    /// Checks that `urxe run` refuses a command in one line with the given reason, and that `urxe doctor`
    /// gives it too.
    fn check_is_refused(&self, command: &[&str], reason: &str) {
        let out = self.run(command);
        let printed = text(&out);
        assert_eq!(out.status.code(), Some(126), "{command:?}: {printed}");
        assert!(printed.contains(reason) && printed.lines().count() == 1, "{printed:?}");
        let mut doctor = urxe(&[&["doctor", "--"], command].concat());
        let printed = text(&doctor.current_dir(self.0.path()).output().unwrap());
        assert!(
            printed.lines().any(|line| line.contains("problem  served") && line.contains(reason)),
            "{printed}"
        );
    }
}

/// Checks that a command succeeds, and returns its output.
fn check(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e} (tests/install programs)"));
    assert!(out.status.success(), "{command:?}: {} (tests/install programs)", text(&out));
    text(&out)
}

/// Returns the path of an object file of the C compiler or of the system's libraries.
fn file_of_compiler(name: &str) -> String {
    check(Command::new("cc").arg(format!("-print-file-name={name}"))).trim_end().to_owned()
}

fn is_root() -> bool {
    requirement::is_met(nix::unistd::geteuid().is_root(), "root")
}

#[test]
fn program_with_address_sanitizer_finds_the_device() {
    Programs::with_devices(&["-fsanitize=address"]).check_finds_device(&["./devices"]);
}

#[test]
fn program_with_a_static_address_sanitizer_finds_the_device() {
    Programs::with_devices(&["-fsanitize=address", "-static-libasan"]).check_finds_device(&["./devices"]);
}

#[test]
fn program_with_leak_sanitizer_finds_the_device() {
    Programs::with_devices(&["-fsanitize=leak"]).check_finds_device(&["./devices"]);
}

#[test]
fn program_with_thread_sanitizer_finds_the_device() {
    Programs::with_devices(&["-fsanitize=thread"]).check_finds_device(&["./devices"]);
}

#[test]
fn program_with_undefined_behavior_sanitizer_finds_the_device() {
    Programs::with_devices(&["-fsanitize=undefined"]).check_finds_device(&["./devices"]);
}

#[test]
fn sanitizer_runtime_that_the_user_preloads_stays_first() {
    let programs = Programs::new();
    let source = DEVICES.replace("int main(void)", "int count(void)");
    programs.compile("cc", "extension.so", &source, &["-shared", "-fPIC", "-fsanitize=address", "-libverbs"]);
    let open = "import ctypes; ctypes.CDLL('./extension.so').count()";
    let out = programs.run_with(&["/usr/bin/python3", "-c", open], |run| {
        // Not for `urxe` itself and the interpreter, which do not free everything.
        run.env("LD_PRELOAD", file_of_compiler("libasan.so")).env("ASAN_OPTIONS", "detect_leaks=0");
    });
    assert_eq!(text(&out), FOUND, "{}", out.status);
}

#[test]
fn sanitizer_still_reports_errors_under_urxe_run() {
    let programs = Programs::new();
    let source = "#include <stdlib.h>\nint main(void) { char *p = malloc(4); free(p); return p[1]; }\n";
    programs.compile("cc", "faulty", source, &["-fsanitize=address"]);
    let printed = text(&programs.run(&["./faulty"]));
    assert!(printed.contains("AddressSanitizer: heap-use-after-free"), "{printed}");
}

/// Returns a directory with a virtual environment, in which the wheel `x` is installed as auditwheel repairs
/// it: with an extension linked against a renamed copy of Debian's libibverbs, and a console script.
fn virtual_environment() -> Programs {
    const COPY: &str = "libibverbs-1de1263b.so.1.14.44.0";
    let programs = Programs::new();
    check(Command::new("/usr/bin/python3").args(["-m", "venv", "--without-pip"]).arg(programs.path("venv")));
    let site = "from sysconfig import get_path; print(get_path('purelib'))";
    let site =
        PathBuf::from(check(Command::new(programs.path("venv/bin/python")).args(["-c", site])).trim_end());
    for directory in ["x", "x.libs"] {
        fs::create_dir(site.join(directory)).unwrap();
    }
    let copy = site.join("x.libs").join(COPY);
    fs::copy(file_of_compiler("libibverbs.so.1"), &copy).unwrap();
    check(Command::new("patchelf").args(["--set-soname", COPY]).arg(&copy));
    let source = DEVICES.replace("int main(void)", "int count(void)");
    programs.compile("cc", "extension.so", &source, &["-shared", "-fPIC", "-libverbs"]);
    let extension = site.join("x/extension.so");
    fs::copy(programs.path("extension.so"), &extension).unwrap();
    check(Command::new("patchelf").args(["--replace-needed", "libibverbs.so.1", COPY]).arg(&extension));
    check(
        Command::new("patchelf").args(["--force-rpath", "--set-rpath", "$ORIGIN/../x.libs"]).arg(&extension),
    );
    let module = "import ctypes, os\n\
                  extension = os.path.join(os.path.dirname(__file__), 'extension.so')\n\
                  def main(): ctypes.CDLL(extension).count()\n";
    fs::write(site.join("x/__init__.py"), module).unwrap();
    let script = format!("#!{}\nimport x\nx.main()\n", programs.at("venv/bin/python"));
    programs.script("venv/bin/tool", &script);
    programs
}

#[test]
fn console_script_of_a_virtual_environment_with_a_repaired_wheel_finds_the_device() {
    let programs = virtual_environment();
    let outside = text(&Command::new(programs.path("venv/bin/tool")).output().unwrap());
    assert_eq!(outside, "no device\n", "the copy works without urxe");
    programs.check_finds_device(&["venv/bin/tool"]);
    programs.check_finds_device(&["venv/bin/python", "-c", "import x; x.main()"]);
}

#[test]
fn activated_virtual_environment_is_searched_for_the_program() {
    let programs = virtual_environment();
    programs.check_finds_device(&["bash", "-c", ". venv/bin/activate && tool"]);
}

#[test]
fn library_of_the_system_opened_by_its_path_is_replaced() {
    let programs = Programs::new();
    let path = file_of_compiler("libibverbs.so.1");
    assert!(Path::new(&path).is_absolute(), "{path} (apt-get install libibverbs1)");
    let script = format!("import ctypes\nlibrary = ctypes.CDLL('{path}')\n{PYTHON}");
    programs.check_finds_device(&["/usr/bin/python3", "-c", &script]);
}

#[test]
fn program_in_a_shell_command_finds_the_device() {
    let programs = Programs::with_devices(&[]);
    programs.check_finds_device(&["bash", "-c", "./devices"]);
    programs.check_finds_device(&["sh", "-c", "exec ./devices"]);
}

#[test]
fn program_is_searched_in_path() {
    let programs = Programs::with_devices(&[]);
    let directory = programs.at("");
    let out = programs.run_with(&["devices"], |run| {
        run.env("PATH", format!("{directory}:/usr/bin:/bin"));
    });
    assert_eq!(text(&out), FOUND);
}

#[test]
fn wrapper_scripts_with_and_without_an_interpreter_line_find_the_device() {
    let programs = Programs::with_devices(&[]);
    for (name, script) in [("with", "#!/bin/sh\nexec ./devices\n"), ("without", "exec ./devices\n")] {
        programs.script(name, script);
        let program = format!("./{name}");
        programs.check_finds_device(&[&program]);
        let printed = text(&urxe(&["doctor", "--", &programs.at(name)]).output().unwrap());
        assert!(printed.contains("script, run by ") && !printed.contains("  problem "), "{printed}");
    }
}

#[test]
fn program_started_by_env_with_an_empty_environment_finds_the_device() {
    let programs = Programs::with_devices(&[]);
    programs.check_finds_device(&["env", "-i", "./devices"]);
    programs.check_finds_device(&["bash", "-c", "exec -c ./devices"]);
}

#[test]
fn program_that_is_executed_with_an_environment_of_its_own_finds_the_device() {
    let programs = Programs::with_devices(&[]);
    for start in [
        "os.execve('./devices', ['devices'], {'HOME': '/'})",
        "subprocess.run(['./devices'], env={'HOME': '/'})",
        "os.waitpid(os.posix_spawn('./devices', ['devices'], {}), 0)",
    ] {
        let script = format!("import os, subprocess; {start}");
        programs.check_finds_device(&["/usr/bin/python3", "-c", &script]);
    }
}

#[test]
fn program_in_an_environment_with_an_empty_ld_preload_runs_without_urxe() {
    let programs = Programs::with_devices(&[]);
    let out = programs.run(&["env", "-i", "LD_PRELOAD=", "./devices"]);
    assert_eq!(text(&out), "no device\n");
}

#[test]
fn sudo_is_refused() {
    let programs = Programs::new();
    programs.check_is_refused(
        &["sudo", "-E", "true"],
        "removes LD_PRELOAD from the environment: let it start urxe (sudo urxe run -- PROGRAM)",
    );
}

#[test]
fn sudo_in_a_script_gets_a_warning() {
    let programs = Programs::new();
    let out = programs.run(&["bash", "-c", "sudo -n -E true 2>&1; true"]);
    let printed = text(&out);
    let warning = "urxe: warning: sudo removes LD_PRELOAD from the environment, so programs start without urxe: \
                   let it start urxe (sudo urxe run -- PROGRAM)";
    assert_eq!(printed.matches(warning).count(), 1, "{printed}");
}

#[test]
fn urxe_started_by_sudo_runs_the_program() {
    if !is_root() {
        return;
    }
    let programs = Programs::with_devices(&[]);
    let [address, _] = addresses();
    let mut sudo = Command::new("sudo");
    sudo.arg(format!("URXE_LIBRARY={}", library().display()));
    sudo.arg(format!("URXE_PRELOAD={}", preload().display())).arg(built("urxe").unwrap());
    sudo.args(["run", "--ip", &address, "--", "./devices"]).current_dir(programs.path(""));
    let printed = check(&mut sudo);
    assert!(printed.contains(FOUND), "{printed}");
}

#[test]
fn program_started_by_su_of_root_finds_the_device() {
    if !is_root() {
        return;
    }
    let programs = Programs::with_devices(&[]);
    let program = programs.at("devices");
    // `su` passes LD_PRELOAD on if root runs it, but cleans the environment of a login shell.
    for login in ["", "-"] {
        let script = format!("su {login} root -s /bin/sh -c {program}");
        programs.check_finds_device(&["sh", "-c", &script]);
    }
}

#[test]
fn setuid_program_is_refused_and_a_copy_is_not() {
    let programs = Programs::with_devices(&[]);
    check(Command::new("chmod").arg("4755").arg(programs.path("devices")));
    programs.check_is_refused(&["./devices"], "is setuid or setgid");
    check(Command::new("cp").arg(programs.path("devices")).arg(programs.path("copy")));
    check(Command::new("chmod").arg("755").arg(programs.path("copy")));
    programs.check_finds_device(&["./copy"]);
}

#[test]
fn program_with_file_capabilities_is_refused_and_a_copy_is_not() {
    if !is_root() {
        return;
    }
    let programs = Programs::with_devices(&[]);
    check(Command::new("setcap").arg("cap_net_raw+ep").arg(programs.path("devices")));
    programs.check_is_refused(&["./devices"], "has file capabilities");
    check(Command::new("cp").arg(programs.path("devices")).arg(programs.path("copy")));
    programs.check_finds_device(&["./copy"]);
}

#[test]
fn statically_linked_program_is_refused() {
    let programs = Programs::new();
    programs.compile("cc", "program", EMPTY, &["-static"]);
    programs.check_is_refused(&["./program"], "is statically linked, so it cannot load the library");
}

#[test]
fn program_with_a_statically_linked_libibverbs_gets_a_warning() {
    let programs = Programs::new();
    let options = ["-Wl,-Bstatic", "-libverbs", "-Wl,-Bdynamic", "-lnl-route-3", "-lnl-3"];
    programs.compile("cc", "program", DEVICES, &options);
    let printed = text(&programs.run(&["./program"]));
    let warning = "urxe: warning: the program contains a statically linked libibverbs";
    assert!(printed.contains("no device\n") && printed.contains(warning), "{printed}");
    assert_eq!(printed.lines().count(), 2, "{printed}");
    let printed = text(&urxe(&["doctor", "--", &programs.at("program")]).output().unwrap());
    assert!(printed.contains("a string in the file suggests that it contains one"), "{printed}");
}

#[test]
fn program_for_32_bits_is_refused() {
    let programs = Programs::new();
    // Without the C library for 32 bits, which the program does not get to load.
    let options = ["-m32", "-nostdlib", "-pie", "-Wl,-e,main", "-Wl,--dynamic-linker=/lib/ld-linux.so.2"];
    programs.compile("cc", "program", EMPTY, &options);
    programs.check_is_refused(&["./program"], "is a 32-bit program for another architecture");
}

#[test]
fn program_linked_with_musl_is_refused() {
    let programs = Programs::new();
    programs.compile("musl-gcc", "program", EMPTY, &[]);
    programs.check_is_refused(&["./program"], "uses musl (/lib/ld-musl-");
}
