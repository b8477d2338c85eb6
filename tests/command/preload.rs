//! Tests, in programs with the library preloaded, that each interposed function redirects device names and
//! leaves other names unchanged.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Output};
use urxe_test_support::programs;

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

const SOURCE: &str = concat!(env!("URXE_REPOSITORY"), "/tests/c/looks.c");

struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    /// Compiles the test program, and creates the tree to which device names are redirected.
    fn new(flags: &[&str]) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let out = Command::new("cc")
            .args(["-Wall", "-Werror", "-o"])
            .arg(dir.path().join("looks"))
            .args(flags)
            .arg(SOURCE)
            .output()
            .expect("a C compiler (apt-get install gcc)");
        assert!(out.status.success(), "{}", text(&out));
        let tree = dir.path().join("tree");
        for directory in ["class/infiniband/urxe0", "class/infiniband_verbs", "dev/infiniband"] {
            fs::create_dir_all(tree.join(directory)).unwrap();
        }
        let guid = tree.join("class/infiniband/urxe0/node_guid");
        fs::write(&guid, "guid\n").unwrap();
        fs::write(tree.join("class/infiniband/urxe0/counter"), "0\n").unwrap();
        fs::set_permissions(&guid, fs::Permissions::from_mode(0o444)).unwrap();
        fs::write(tree.join("class/infiniband_verbs/abi_version"), "6\n").unwrap();
        let function = tree.join("devices/pci0000:fe/0000:fe:1f.0");
        for directory in [&*function, &tree.join("devices/pci0000:fe/pci_bus/0000:fe")] {
            fs::create_dir_all(directory).unwrap();
        }
        fs::write(function.join("vendor"), "guid\n").unwrap();
        for (name, to) in [
            ("bus/pci/devices/0000:fe:1f.0", "../../../devices/pci0000:fe/0000:fe:1f.0"),
            ("class/pci_bus/0000:fe", "../../devices/pci0000:fe/pci_bus/0000:fe"),
        ] {
            fs::create_dir_all(tree.join(name).parent().unwrap()).unwrap();
            symlink(to, tree.join(name)).unwrap();
        }
        symlink("../other", tree.join("class/infiniband/urxe0/device")).unwrap();
        symlink("/dev/null", tree.join("dev/infiniband/uverbs0")).unwrap();
        Fixture { dir }
    }

    fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    fn program(&self) -> Command {
        let mut command = Command::new(self.dir.path().join("looks"));
        command.arg(self.dir.path()).env("LD_PRELOAD", programs::preload()).env_remove("URXE_SYSFS");
        command
    }
}

fn check_succeeds(command: &mut Command) {
    let out = command.output().unwrap();
    assert!(out.status.success() && text(&out).is_empty(), "{:?}: {}", out.status, text(&out));
}

#[test]
fn every_function_redirects_device_names_and_no_other_names() {
    let fixture = Fixture::new(&["-O1"]);
    check_succeeds(fixture.program().env("URXE_SYSFS", fixture.tree()));
}

#[test]
fn file_names_are_not_redirected_without_a_sysfs_tree() {
    let fixture = Fixture::new(&[]);
    check_succeeds(&mut fixture.program());
    check_succeeds(fixture.program().env_remove("LD_PRELOAD"));
}

#[test]
fn fortified_and_sanitised_programs_run_with_the_preload_library() {
    let fixture = Fixture::new(&["-O2", "-D_FORTIFY_SOURCE=2", "-fsanitize=address"]);
    let mut command = fixture.program();
    // Set by `urxe run`, too.
    command.env("ASAN_OPTIONS", "verify_asan_link_order=0").env("URXE_SYSFS", fixture.tree());
    check_succeeds(&mut command);
}

#[test]
fn every_exported_function_is_tested() {
    let out = Command::new("nm").args(["-D", "--defined-only"]).arg(programs::preload()).output();
    let out = text(&out.expect("nm (apt-get install binutils)"));
    let names: Vec<&str> = out.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert!(names.contains(&"open") && names.len() > 40, "{names:?}");
    let source = fs::read_to_string(SOURCE).unwrap();
    let (_, calls) = source.split_once("#define VERSION").unwrap();
    for name in
        names.iter().map(|name| name.split('@').next().unwrap()).filter(|name| !name.starts_with("GLIBC"))
    {
        assert!(calls.contains(&format!("{name}(")), "looks.c does not call {name}");
    }
}
