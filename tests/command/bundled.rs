//! Tests of `urxe run` with programs that bundle their own libibverbs: under another name, as auditwheel does
//! in Python wheels, in a directory named in a DT_RPATH, opened by `dlopen`, or linked statically. The copies
//! find no device, so any device that a program finds is urxe's.

use std::fs;
use std::process::{Command, Output};
use std::time::Duration;

use urxe_test_support::programs::{Running, addresses, text, urxe};

/// File name in the form that auditwheel gives to a bundled library: part of a hash, then the version.
const HASHED: &str = "libibverbs-1de1263b.so.1.14.48.0";
const PLAIN: &str = "libibverbs.so.1";

/// Source of the bundled libibverbs, which looks for devices in the same place as libibverbs but never finds
/// one.
const COPY: &str = r#"
#include <fcntl.h>
#include <unistd.h>
void **ibv_get_device_list(int *count)
{
	close(open("/sys/class/infiniband_verbs/abi_version", O_RDONLY));
	*count = 0;
	return 0;
}
const char *ibv_get_device_name(void *device)
{
	return "none";
}
"#;

const VERSIONS: &str = "IBVERBS_1.0 { };\nIBVERBS_1.1 { global: ibv_get_device_list; ibv_get_device_name; local: *; } IBVERBS_1.0;\n";

/// Source of `count`, which counts devices with functions of the library that it is linked against.
const LINKED: &str = r#"
#include <stdio.h>
void **ibv_get_device_list(int *);
const char *ibv_get_device_name(void *);
int count(const char *directory)
{
	int count;
	void **list = ibv_get_device_list(&count);
	printf("%d %s\n", count, count ? ibv_get_device_name(list[0]) : "-");
	return 0;
}
"#;

/// Source of `count`, which opens the library NAME, in the given directory if NAME contains a slash, and
/// counts devices with functions that it looks up there.
const OPENED: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#ifndef FLAGS
#define FLAGS RTLD_LOCAL
#endif
int count(const char *directory)
{
	char path[4096];
	snprintf(path, sizeof path, "%s%s", strchr(NAME, '/') ? directory : "", NAME);
	void *library = dlopen(path, RTLD_NOW | FLAGS);
	if (!library) {
		printf("%s\n", dlerror());
		return 1;
	}
	void **(*list)(int *) = (void **(*)(int *))dlsym(library, "ibv_get_device_list");
	const char *(*name)(void *) = (const char *(*)(void *))dlsym(library, "ibv_get_device_name");
	int count;
	void **devices = list(&count);
	printf("%d %s\n", count, count ? name(devices[0]) : "-");
	return 0;
}
"#;

/// Source of a program that calls `count`, linked into it.
const PROGRAM: &str =
    "int count(const char *);\nint main(int argc, char **argv) { return count(argv[1]); }\n";

/// Source of a program that calls `count` in `extension.so`, which it opens in the given directory, as an
/// interpreter does.
const INTERPRETER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/extension.so", argv[1]);
	void *extension = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!extension) {
		printf("%s\n", dlerror());
		return 1;
	}
	int (*count)(const char *) = (int (*)(const char *))dlsym(extension, "count");
	return count(argv[1]);
}
"#;

/// A directory with a bundled libibverbs and programs that use it.
struct Wheel(tempfile::TempDir);

impl Wheel {
    /// Builds a copy with the given file name, which is also its DT_SONAME.
    fn new(name: &str) -> Wheel {
        let wheel = Wheel(tempfile::tempdir().unwrap());
        fs::write(wheel.at("versions"), VERSIONS).unwrap();
        let script = format!("-Wl,--version-script={}", wheel.at("versions"));
        let soname = format!("-Wl,-soname,{name}");
        wheel.cc(name, COPY, &["-shared", "-fPIC", &script, &soname]);
        wheel
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn cc(&self, name: &str, source: &str, args: &[&str]) {
        let file = self.at(&format!("{name}.c"));
        fs::write(&file, source).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-o", &self.at(name), &file]).args(args).arg("-ldl");
        let built = cc.output().expect("a C compiler (apt-get install gcc)");
        assert!(built.status.success(), "{}", text(&built));
    }

    /// Runs a program from the directory under `urxe run`.
    fn run(&self, program: &str) -> Output {
        let [address, _] = addresses();
        let directory = self.at("");
        let args = ["run", "--ip", &address, "--", &self.at(program), directory.trim_end_matches('/')];
        Running::new(urxe(&args)).finish(Duration::from_secs(30))
    }

    /// Checks that the program finds urxe's device and prints nothing else.
    fn check_finds_device(&self, program: &str) {
        assert_eq!(text(&self.run(program)), "1 urxe0\n");
    }

    /// Checks that the program finds no device, and that urxe warns of its copy in one line.
    fn check_gets_warning(&self, program: &str, reason: &str) {
        let out = self.run(program);
        let printed = text(&out);
        assert!(out.status.success() && printed.contains("0 -\n"), "{printed}");
        let warning = format!("urxe: warning: the program {reason}");
        assert!(printed.contains(&warning) && printed.lines().count() == 2, "{printed}");
    }
}

/// Linker options for both kinds of search path: auditwheel sets a DT_RPATH; newer tools set a DT_RUNPATH.
const PATHS: [&str; 2] = ["--disable-new-dtags", "--enable-new-dtags"];

fn rpath_origin(tags: &str) -> String {
    format!("-Wl,{tags},-rpath,$ORIGIN")
}

#[test]
fn program_linked_against_a_renamed_copy_finds_the_device() {
    let wheel = Wheel::new(HASHED);
    for tags in PATHS {
        wheel.cc("program", &[LINKED, PROGRAM].concat(), &[&wheel.at(HASHED), &rpath_origin(tags)]);
        wheel.check_finds_device("program");
    }
}

#[test]
fn extension_linked_against_a_renamed_copy_finds_the_device() {
    let wheel = Wheel::new(HASHED);
    wheel.cc("program", INTERPRETER, &[]);
    for tags in PATHS {
        let args = ["-shared", "-fPIC", &wheel.at(HASHED), &rpath_origin(tags)];
        wheel.cc("extension.so", LINKED, &args);
        wheel.check_finds_device("program");
    }
}

#[test]
fn extension_that_opens_a_copy_by_the_plain_name_finds_the_device() {
    let wheel = Wheel::new(PLAIN);
    wheel.cc("program", INTERPRETER, &[]);
    for tags in PATHS {
        let args = ["-shared", "-fPIC", "-DNAME=\"libibverbs.so.1\"", &rpath_origin(tags)];
        wheel.cc("extension.so", OPENED, &args);
        wheel.check_finds_device("program");
    }
}

#[test]
fn program_with_a_bundled_libibverbs_so_1_in_its_rpath_finds_the_device() {
    let wheel = Wheel::new(PLAIN);
    for tags in PATHS {
        wheel.cc("program", &[LINKED, PROGRAM].concat(), &[&wheel.at(PLAIN), &rpath_origin(tags)]);
        wheel.check_finds_device("program");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn program_that_opens_a_copy_by_its_path_finds_the_device() {
    for copy in [HASHED, PLAIN] {
        let wheel = Wheel::new(copy);
        let name = format!("-DNAME=\"/{copy}\"");
        wheel.cc("program", &[OPENED, PROGRAM].concat(), &[&name]);
        wheel.check_finds_device("program");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn program_that_opens_a_copy_with_rtld_deepbind_finds_the_device() {
    let wheel = Wheel::new(HASHED);
    let name = format!("-DNAME=\"/{HASHED}\"");
    wheel.cc("program", &[OPENED, PROGRAM].concat(), &[&name, "-DFLAGS=RTLD_DEEPBIND"]);
    wheel.check_finds_device("program");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn program_that_opens_a_copy_in_a_new_link_map_namespace_finds_the_device() {
    for copy in [HASHED, PLAIN] {
        let wheel = Wheel::new(copy);
        let name = format!("-DNAME=\"/{copy}\"");
        let source = [OPENED, PROGRAM].concat().replace("dlopen(", "dlmopen(LM_ID_NEWLM, ");
        wheel.cc("program", &source, &[&name]);
        wheel.check_finds_device("program");
    }
}

/// The interposed `dlopen` must not hide its caller, whose search path applies.
#[test]
fn other_library_is_found_in_the_search_path_of_the_extension_that_opens_it() {
    let wheel = Wheel::new(HASHED);
    wheel.cc("program", INTERPRETER, &[]);
    wheel.cc("libother.so", LINKED, &["-shared", "-fPIC", &wheel.at(HASHED), &rpath_origin(PATHS[0])]);
    // Opens `libother.so` and calls `count` in it.
    let source = INTERPRETER
        .replace("int main(int argc, char **argv)", "int count(char *directory)")
        .replace("\"%s/extension.so\", argv[1]", "\"libother.so\"")
        .replace("argv[1]", "directory");
    for tags in PATHS {
        wheel.cc("extension.so", &source, &["-shared", "-fPIC", &rpath_origin(tags)]);
        wheel.check_finds_device("program");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn extension_opened_with_rtld_deepbind_that_is_linked_against_a_copy_finds_the_device() {
    let wheel = Wheel::new(HASHED);
    wheel.cc("program", &INTERPRETER.replace("RTLD_LOCAL", "RTLD_DEEPBIND"), &[]);
    wheel.cc("extension.so", LINKED, &["-shared", "-fPIC", &wheel.at(HASHED), &rpath_origin(PATHS[0])]);
    wheel.check_finds_device("program");
}

/// Checks that urxe warns of a program that looks functions up in an object linked against a copy, because
/// such lookups cannot be redirected.
#[test]
fn program_that_looks_up_functions_through_an_extension_gets_a_warning() {
    let wheel = Wheel::new(HASHED);
    wheel.cc("extension.so", LINKED, &["-shared", "-fPIC", &wheel.at(HASHED), &rpath_origin(PATHS[0])]);
    wheel.cc("program", &[OPENED, PROGRAM].concat(), &["-DNAME=\"/extension.so\""]);
    let copy = format!("uses {}, a bundled copy of libibverbs", wheel.at(HASHED));
    wheel.check_gets_warning("program", &copy);
}

#[test]
fn program_that_contains_a_libibverbs_gets_a_warning() {
    let wheel = Wheel::new(HASHED);
    wheel.cc(
        "program",
        &[COPY, &LINKED.replace("void **ibv_get_device_list(int *);", ""), PROGRAM].concat(),
        &[],
    );
    wheel.check_gets_warning("program", "contains a statically linked libibverbs");
}
