//! Tests of `urxe doctor`: checks of the machine, and checks of programs of each kind against what `urxe run`
//! does with them. Needs a C compiler, which builds the programs and stubs of urxe's libraries.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A temporary directory with stubs of urxe's libraries and with the programs to check.
struct Fixture(tempfile::TempDir);

impl Fixture {
    fn new() -> Fixture {
        let fixture = Fixture(tempfile::tempdir().unwrap());
        fixture.compile(
            "libibverbs.so",
            "int ibv_fork_init(void) { return 0; }",
            &["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1"],
        );
        fixture.compile("liburxe_preload.so", "int urxe_stub;", &["-shared", "-fPIC"]);
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Compiles C source to a file in the directory.
    fn compile(&self, name: &str, source: &str, options: &[&str]) -> PathBuf {
        let (file, out) = (self.path(&format!("{name}.c")), self.path(name));
        fs::write(&file, source).unwrap();
        let mut cc = Command::new("cc");
        cc.arg(&file).arg("-o").arg(&out).args(options).current_dir(self.0.path());
        let built = cc.output().expect("a C compiler (apt-get install gcc)");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        out
    }

    /// Creates an executable file, with `sh`: if this process had it open for writing, a child that another
    /// thread forks would inherit the descriptor, and the file could not be executed (ETXTBSY).
    fn script(&self, name: &str, first_line: &str) -> PathBuf {
        let path = self.path(name);
        let write = "printf '%s\\nexit 0\\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
        let status = Command::new("sh").args(["-c", write]).arg(&path).arg(first_line).status().unwrap();
        assert!(status.success());
        path
    }

    fn urxe(&self, args: &[&str], program: Option<&Path>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_urxe"));
        command.args(args).args(program.iter().flat_map(|path| ["--".as_ref(), path.as_os_str()]));
        command.env("URXE_LIBRARY", self.path("libibverbs.so"));
        command.env("URXE_PRELOAD", self.path("liburxe_preload.so"));
        command.env("XDG_RUNTIME_DIR", self.0.path()).env_remove("LD_PRELOAD").env_remove("LD_LIBRARY_PATH");
        command
    }

    /// Returns the part of the JSON document that describes a program.
    fn report(&self, program: &Path) -> Value {
        let output = self.urxe(&["doctor", "--json"], Some(program)).output().unwrap();
        let mut document = document(&output);
        document["program"].take()
    }

    /// Returns the message with which `urxe run` refuses a program.
    fn refusal(&self, program: &Path) -> String {
        let output = self.urxe(&["run"], Some(program)).output().unwrap();
        assert_eq!(output.status.code(), Some(126), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// Parses the document, and checks that its status, the statuses of the checks and the exit status agree.
fn document(output: &Output) -> Value {
    let document: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    let program = document["program"]["checks"].as_array().cloned().unwrap_or_default();
    let all = [document["machine"].as_array().unwrap().clone(), program].concat();
    let rank = |check: &Value| {
        ["ok", "warning", "problem"].iter().position(|name| check["status"] == *name).unwrap()
    };
    let worst = all.iter().map(rank).max().unwrap();
    assert_eq!(rank(&document), worst, "{document}");
    assert_eq!(output.status.code(), Some(i32::from(worst == 2)), "{document}");
    for check in &all {
        assert!(check["message"].as_str().is_some_and(|text| !text.is_empty()), "{check}");
        assert!(check["status"] != "ok" || check["advice"].is_null(), "{check}");
        assert!(check["status"] != "warning" || check["advice"].is_string(), "{check}");
    }
    document
}

/// Returns status and message of the only check with the given name.
fn check(report: &Value, name: &str) -> (String, String) {
    let all = report["checks"].as_array().unwrap();
    let named: Vec<&Value> = all.iter().filter(|check| check["name"] == name).collect();
    let [one] = named[..] else { panic!("{name}: {report}") };
    let text = |field: &str| one[field].as_str().unwrap().to_owned();
    (text("status"), text("message"))
}

#[test]
fn machine_report_covers_every_resource_in_text_and_json() {
    let fixture = Fixture::new();
    let output = fixture.urxe(&["doctor", "--json"], None).output().unwrap();
    let document = document(&output);
    assert!(document["program"].is_null());
    let text = fixture.urxe(&["doctor"], None).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with("machine\n") && !text.contains('\x1b'), "{text}");
    let names: Vec<&str> =
        document["machine"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap()).collect();
    for name in [
        "interfaces",
        "port",
        "broker",
        "devices",
        "libraries",
        "links",
        "user",
        "buffers",
        "offload",
        "memlock",
        "descriptors",
        "namespaces",
        "hugepages",
        "kernel",
    ] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
        assert!(text.contains(&format!(" {name} ")), "{name} is not in\n{text}");
    }
    assert!(text.contains("127.0.0.1"), "{text}");
}

#[test]
fn missing_library_is_a_problem_with_the_message_of_run() {
    let fixture = Fixture::new();
    fs::remove_file(fixture.path("libibverbs.so")).unwrap();
    let output = fixture.urxe(&["doctor", "--json"], Some(Path::new("true"))).output().unwrap();
    let document = document(&output);
    let libraries = document["machine"].as_array().unwrap().iter().find(|check| check["name"] == "libraries");
    let message = libraries.unwrap()["message"].as_str().unwrap();
    assert!(message.contains("URXE_LIBRARY is "), "{message}");
    let refusal = fixture.refusal(Path::new("true"));
    assert_eq!(refusal, format!("urxe: {message}\n"));
}

#[test]
fn missing_program_is_a_problem() {
    let fixture = Fixture::new();
    let report = fixture.report(Path::new("no-such-program"));
    let (status, message) = check(&report, "path");
    assert_eq!(status, "problem");
    assert!(
        message.contains("no executable program 'no-such-program'") && report["path"].is_null(),
        "{report}"
    );
}

#[test]
fn programs_that_cannot_load_the_library_are_problems_with_the_message_of_run() {
    const EMPTY: &str = "int main(void) { return 0; }";
    let fixture = Fixture::new();
    let fixed = fixture.compile("fixed", EMPTY, &["-static"]);
    let setuid = fixture.compile("setuid", EMPTY, &[]);
    fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755)).unwrap();
    let musl = fixture.compile("musl", EMPTY, &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"]);
    let foreign = fixture.compile("foreign", EMPTY, &[]);
    // The ELF machine of SPARC.
    let set_machine = "printf '\\002' | dd of=\"$0\" bs=1 seek=18 conv=notrunc 2>/dev/null";
    assert!(Command::new("sh").args(["-c", set_machine]).arg(&foreign).status().unwrap().success());
    for (program, kind, reason) in [
        (&fixed, "static", "is statically linked"),
        (&setuid, "dynamic", "is setuid or setgid"),
        (&musl, "dynamic", "uses musl (/lib/ld-musl-x86_64.so.1)"),
        (&foreign, "dynamic", "is a 64-bit program for another architecture"),
    ] {
        let report = fixture.report(program);
        let (status, message) = check(&report, "served");
        assert_eq!((status.as_str(), &report["kind"]), ("problem", &kind.into()), "{report}");
        let refusal = fixture.refusal(program);
        assert!(message.contains(reason) && refusal.starts_with(&format!("urxe: {message} ")), "{refusal}");
        assert!(refusal.contains(&format!("`urxe doctor -- {}`", program.display())), "{refusal}");
    }
}

#[test]
fn script_is_described_by_its_interpreter() {
    let fixture = Fixture::new();
    let script = fixture.script("script", "#!/usr/bin/env sh");
    let report = fixture.report(&script);
    assert_eq!(report["kind"], "script");
    assert!(report["interpreter"].as_str().unwrap().ends_with("/sh"), "{report}");
    assert_eq!(check(&report, "served").0, "ok", "{report}");

    let fixed = fixture.compile("fixed", "int main(void) { return 0; }", &["-static"]);
    let script = fixture.script("static-script", &format!("#!{}", fixed.display()));
    let (status, message) = check(&fixture.report(&script), "served");
    assert_eq!(status, "warning");
    assert!(message.contains("only the programs that the script starts"), "{message}");
    let ran = fixture.urxe(&["run"], Some(&script)).status().unwrap();
    assert!(ran.success(), "`urxe run` refuses it: {ran}");

    let script = fixture.script("no-interpreter-line", "# A comment.");
    let report = fixture.report(&script);
    assert_eq!(
        (report["interpreter"].as_str(), check(&report, "served").0.as_str()),
        (Some("/bin/sh"), "ok")
    );
    let ran = fixture.urxe(&["run"], Some(&script)).status().unwrap();
    assert!(ran.success(), "`urxe run` refuses it: {ran}");

    let script = fixture.script("broken-script", "#!/nonexistent/interpreter");
    let (status, message) = check(&fixture.report(&script), "kind");
    assert_eq!(status, "problem");
    assert!(message.contains("/nonexistent/interpreter, which does not exist"), "{message}");
    let refusal = fixture.refusal(&script);
    assert!(refusal.contains("cannot run") && refusal.contains("urxe doctor -- "), "{refusal}");
}

#[test]
fn libraries_are_those_of_the_loader_with_and_without_urxe() {
    const SOURCE: &str = "int ibv_fork_init(void); int main(void) { return ibv_fork_init(); }";
    let fixture = Fixture::new();
    let directory = fixture.0.path().to_str().unwrap();
    for (own, soname) in [("own", "libibverbs.so.1"), ("renamed", "libibverbs-1de1263b.so.1")] {
        fs::create_dir(fixture.path(own)).unwrap();
        let library = format!("{own}/{soname}");
        let soname_option = format!("-Wl,-soname,{soname}");
        fixture.compile(
            &library,
            "int ibv_fork_init(void) { return 3; }",
            &["-shared", "-fPIC", &soname_option],
        );
        let runpath = format!("-Wl,--enable-new-dtags,-rpath,{directory}/{own}");
        let name = format!("{own}-program");
        let program = fixture.compile(&name, SOURCE, &[&format!("{directory}/{library}"), &runpath]);
        let report = fixture.report(&program);
        assert_eq!(report["needed"][0], soname, "{report}");
        assert_eq!(report["runpath"], format!("{directory}/{own}"), "{report}");
        let rdma = &report["rdma_libraries"][0];
        assert_eq!(rdma["without_urxe"], format!("{directory}/{library}"), "{report}");
        let with = rdma["with_urxe"].as_str().unwrap();
        assert_eq!(with.ends_with("/liburxe_verbs.so"), own == "own", "{report}");
        assert_eq!(
            check(&report, "served"),
            ("ok".into(), "under `urxe run` it uses urxe's libibverbs".into())
        );
        let message = check(&report, "libraries").1;
        assert_eq!(
            message.contains("a copy before which `urxe run` preloads"),
            own == "renamed",
            "{message}"
        );
        // The report is right: the program calls the stub's function, not the copy's.
        assert_eq!(Command::new(&program).status().unwrap().code(), Some(3));
        assert_eq!(fixture.urxe(&["run"], Some(&program)).status().unwrap().code(), Some(0), "{own}");
    }
}

#[test]
fn library_that_does_not_exist_is_a_problem() {
    let fixture = Fixture::new();
    let library = fixture.compile("libgone.so", "int gone(void) { return 0; }", &["-shared", "-fPIC"]);
    let options = ["-L.", "-lgone"];
    let program = fixture.compile("program", "int gone(void); int main(void) { return gone(); }", &options);
    fs::remove_file(library).unwrap();
    let (status, message) = check(&fixture.report(&program), "served");
    assert_eq!(status, "problem");
    assert!(
        message.contains("does not start even without urxe") && message.contains("libgone.so"),
        "{message}"
    );
}

#[test]
fn library_without_a_version_that_the_program_needs_is_a_problem() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("new")).unwrap();
    fs::write(fixture.path("old-versions"), "IBVERBS_1.0 { ibv_old; };\n").unwrap();
    let options = ["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", "-Wl,--version-script=old-versions"];
    fixture.compile("libibverbs.so", "int ibv_old(void) { return 0; }", &options);
    fs::write(fixture.path("versions"), "IBVERBS_9.9 { ibv_new; };\n").unwrap();
    let options = ["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", "-Wl,--version-script=versions"];
    fixture.compile("new/libibverbs.so.1", "int ibv_new(void) { return 0; }", &options);
    let runpath = format!("-Wl,-rpath,{}", fixture.path("new").display());
    let options = ["new/libibverbs.so.1", &runpath];
    let program =
        fixture.compile("program", "int ibv_new(void); int main(void) { return ibv_new(); }", &options);
    let (status, message) = check(&fixture.report(&program), "served");
    assert_eq!(status, "problem");
    assert!(
        message.contains("does not start with urxe's library") && message.contains("IBVERBS_9.9"),
        "{message}"
    );
}
