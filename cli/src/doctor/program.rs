//! Checks of a program: kind of file, libraries that it would load, and whether `urxe run` serves it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::read::elf::{Dyn, FileHeader};
use object::{Endianness, FileKind, elf};
use serde::Serialize;

use super::{Check, Status};
use crate::run::{VERBS_LIBRARY, check_loads_libraries, elf_loader, find_program};

/// Interpreter of text files without a line `#!INTERPRETER`, which `execvp` selects.
const SHELL: &str = "/bin/sh";

/// Maximum nesting of scripts that interpret scripts, as in the kernel.
const MAX_INTERPRETERS: usize = 4;

/// Environment variables that `urxe run` sets or, without a value, removes.
type Environment<'a> = &'a [(&'static str, Option<OsString>)];

/// Properties of a program, and the results of its checks.
#[derive(Serialize, Debug, Default)]
pub struct ProgramReport {
    /// Path at which a shell would find the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Kind of file; absent if there is no such program.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<Kind>,
    /// Dynamic loader, or the interpreter of a script.
    #[serde(skip_serializing_if = "Option::is_none")]
    interpreter: Option<PathBuf>,
    /// Libraries named by the program's DT_NEEDED entries.
    needed: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rpath: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runpath: Option<String>,
    /// RDMA libraries that the loader would load when the program starts.
    rdma_libraries: Vec<RdmaLibrary>,
    pub checks: Vec<Check>,
}

/// Kind of executable file.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// ELF with a dynamic loader.
    Dynamic,
    /// ELF without a dynamic loader.
    Static,
    /// Script with an interpreter.
    Script,
    /// Neither ELF nor a script, or not readable.
    Unknown,
}

/// A libibverbs or librdmacm that a program is linked with, directly or through other libraries.
#[derive(Serialize, Debug)]
struct RdmaLibrary {
    /// Name in the DT_NEEDED entry.
    name: String,
    /// Path that the loader finds without urxe.
    #[serde(skip_serializing_if = "Option::is_none")]
    without_urxe: Option<String>,
    /// Path that the loader finds under `urxe run`.
    #[serde(skip_serializing_if = "Option::is_none")]
    with_urxe: Option<String>,
}

/// Inspects a program. If `urxe run` could not set up its environment (`None`), its libraries are not listed.
pub fn inspect(name: &OsStr, environment: Option<Environment<'_>>) -> ProgramReport {
    let mut report = ProgramReport::default();
    match find_program(name) {
        Ok(path) => {
            report.inspect_file(&path, environment, MAX_INTERPRETERS);
            report.path = Some(path);
        }
        Err(e) => report.checks.push(Check::failed("path", &e)),
    }
    report
}

impl ProgramReport {
    fn inspect_file(&mut self, path: &Path, environment: Option<Environment<'_>>, depth: usize) {
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let link = if target == path { String::new() } else { format!(" -> {}", target.display()) };
        self.checks.push(Check::ok("path", format!("{}{link}", path.display())));
        // The decision of `urxe run` itself.
        let accepted = check_loads_libraries(path);
        let Ok(bytes) = fs::read(path) else {
            self.kind = Some(Kind::Unknown);
            let advice = "make it readable to have it checked (chmod a+r)";
            self.checks.push(Check::warning("kind", "not readable: the dynamic loader decides", advice));
            return;
        };
        match FileKind::parse(&*bytes) {
            Ok(FileKind::Elf32) => self.read_elf::<elf::FileHeader32<Endianness>>(&bytes),
            Ok(FileKind::Elf64) => self.read_elf::<elf::FileHeader64<Endianness>>(&bytes),
            _ => match script_interpreter(&bytes) {
                Some(words) => self.inspect_script(&words, environment, depth),
                None => {
                    self.kind = Some(Kind::Unknown);
                    let advice = "build the program for this machine, or run it by its interpreter";
                    self.checks.push(Check::problem("kind", "neither an ELF program nor a script", advice));
                }
            },
        }
        match accepted {
            Err(e) => self.checks.push(Check::failed("served", &e)),
            Ok(()) if self.kind == Some(Kind::Dynamic) => self.list_libraries(path, environment),
            Ok(()) => {}
        }
    }

    /// Inspects a script's interpreter, given the words after `#!`.
    fn inspect_script(&mut self, words: &[String], environment: Option<Environment<'_>>, depth: usize) {
        self.kind = Some(Kind::Script);
        let mut name = &words[0];
        if Path::new(name).file_name() == Some(OsStr::new("env")) {
            let is_option = |word: &&String| word.starts_with('-') || word.contains('=');
            name = words[1..].iter().find(|word| !is_option(word)).unwrap_or(name);
        }
        let Ok(path) = find_program(OsStr::new(name)) else {
            let message = format!("script for {name}, which does not exist");
            let advice = format!("install {name}, or correct the first line of the script");
            self.checks.push(Check::problem("kind", message, advice));
            return;
        };
        self.checks.push(Check::ok("kind", format!("script, run by {}", path.display())));
        self.interpreter = Some(path.clone());
        if depth == 0 {
            let advice = "reduce the number of interpreters that are scripts themselves";
            self.checks.push(Check::problem("kind", "too many nested interpreters", advice));
            return;
        }
        let mut interpreter = ProgramReport::default();
        interpreter.inspect_file(&path, environment, depth - 1);
        // The programs that a script starts are served, whatever its interpreter is.
        for check in interpreter.checks.into_iter().filter(|check| check.name != "path") {
            self.checks.push(match check {
                Check { name: "served", status: Status::Problem, message, .. } => Check::warning(
                    "served",
                    format!("only the programs that the script starts: {message}"),
                    "check those programs: urxe doctor -- PROGRAM",
                ),
                check => check,
            });
        }
        self.rdma_libraries = interpreter.rdma_libraries;
    }

    /// Reads the program's loader, DT_NEEDED, DT_RPATH and DT_RUNPATH.
    fn read_elf<Header: FileHeader<Endian = Endianness>>(&mut self, bytes: &[u8]) {
        if self.read_dynamic_section::<Header>(bytes).is_err() {
            self.checks.push(Check::warning("kind", "damaged ELF headers", "build the program again"));
        }
        let class =
            if Header::parse(bytes).is_ok_and(|header| header.is_type_64()) { "64-bit" } else { "32-bit" };
        self.kind = Some(if self.interpreter.is_some() { Kind::Dynamic } else { Kind::Static });
        let text = match &self.interpreter {
            Some(loader) => format!("{class} ELF, dynamically linked, loader {}", loader.display()),
            None => format!("{class} ELF, statically linked"),
        };
        self.checks.push(Check::ok("kind", text));
        let mut text = format!("DT_NEEDED {}", self.needed.join(" "));
        for (name, value) in [("DT_RPATH", &self.rpath), ("DT_RUNPATH", &self.runpath)] {
            if let Some(value) = value {
                text.push_str(&format!(", {name} {value}"));
            }
        }
        if !self.needed.is_empty() {
            self.checks.push(Check::ok("needs", text));
        }
    }

    fn read_dynamic_section<Header: FileHeader<Endian = Endianness>>(
        &mut self,
        bytes: &[u8],
    ) -> object::read::Result<()> {
        self.interpreter = elf_loader::<Header>(bytes)?.1;
        let header = Header::parse(bytes)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, bytes)?;
        let Some((entries, strings)) = sections.dynamic(endian, bytes)? else { return Ok(()) };
        let strings = sections.strings(endian, bytes, strings)?;
        for entry in entries {
            let tag = entry.tag32(endian).unwrap_or(elf::DT_NULL);
            if !matches!(tag, elf::DT_NEEDED | elf::DT_RPATH | elf::DT_RUNPATH) {
                continue;
            }
            let text = String::from_utf8_lossy(entry.string(endian, strings)?).into_owned();
            match tag {
                elf::DT_NEEDED => self.needed.push(text),
                elf::DT_RPATH => self.rpath = Some(text),
                _ => self.runpath = Some(text),
            }
        }
        Ok(())
    }

    /// Lists the libraries that the loader would load, without urxe and under `urxe run`.
    fn list_libraries(&mut self, path: &Path, environment: Option<Environment<'_>>) {
        let (Some(loader), Some(environment)) = (&self.interpreter, environment) else { return };
        let listed = [Listing::of(loader, path, &[]), Listing::of(loader, path, environment)];
        let [Ok(without), Ok(with)] = listed else {
            let advice = format!("install the loader {} of the program", loader.display());
            self.checks.push(Check::problem("served", "its loader cannot be run", advice));
            return;
        };
        if let Some(error) = without.errors.first().filter(|_| without.has_failed) {
            let advice = "install the package that has the library, or add its directory to LD_LIBRARY_PATH";
            let message = format!("does not start even without urxe: {error}");
            self.checks.push(Check::problem("served", message, advice));
            return;
        }
        self.rdma_libraries = rdma_libraries(&without, &with);
        for RdmaLibrary { name, without_urxe, with_urxe } in &self.rdma_libraries {
            let before = without_urxe.as_deref().unwrap_or("none");
            let message = match with_urxe.as_deref() {
                None => format!("{name}: {before}; missing under `urxe run`"),
                Some(path) if Some(path) == without_urxe.as_deref() => {
                    format!("{name}: {path}, a copy before which `urxe run` preloads urxe's library")
                }
                Some(path) => format!("{name}: {before}; under `urxe run` {path}"),
            };
            self.checks.push(Check::ok("libraries", message));
        }
        let new_error = with.errors.iter().find(|error| !without.errors.contains(error));
        let reason = new_error.map_or("no reason given", |error| error.as_str());
        self.checks.push(if with.preloaded.is_none() {
            Check::problem(
                "served",
                format!("its loader does not preload urxe's library: {reason}"),
                "run a program that is built for the same architecture and C library (glibc) as urxe",
            )
        } else if new_error.is_some() {
            Check::problem(
                "served",
                format!("does not start with urxe's library: {reason}"),
                "build the program for the rdma-core release that urxe implements, or update urxe",
            )
        } else if self.rdma_libraries.is_empty() && contains_libibverbs(path) {
            Check::warning(
                "served",
                "loads no libibverbs at its start; a string in the file suggests that it contains one, which would \
                 find no urxe device",
                "link the program with libibverbs.so.1 instead of libibverbs.a",
            )
        } else if self.rdma_libraries.is_empty() {
            let text = "loads no libibverbs at its start; one that it loads later (dlopen), and programs that it \
                        starts, get urxe's";
            Check::ok("served", text)
        } else {
            Check::ok("served", "under `urxe run` it uses urxe's libibverbs")
        });
    }
}

/// Reports whether a program contains the name of a file that libibverbs opens, and few other programs.
fn contains_libibverbs(program: &Path) -> bool {
    const NAME: &[u8] = b"class/infiniband_verbs/abi_version";
    fs::read(program).is_ok_and(|bytes| bytes.windows(NAME.len()).any(|window| window == NAME))
}

/// Returns the RDMA libraries in the listings of a program without urxe and under `urxe run`.
fn rdma_libraries(without: &Listing, with: &Listing) -> Vec<RdmaLibrary> {
    let names = |listing: &Listing| -> Vec<String> {
        let is_rdma = |name: &&String| name.starts_with("libibverbs") || name.starts_with("librdmacm");
        listing.libraries.iter().map(|(name, _)| name).filter(is_rdma).cloned().collect()
    };
    let mut all = [names(without), names(with)].concat();
    all.sort();
    all.dedup();
    // The preloaded library has the name of libibverbs and is the same file as librdmacm, so the loader does
    // not list these again.
    all.into_iter()
        .map(|name| RdmaLibrary {
            without_urxe: without.find(&name),
            with_urxe: with.find(&name).or_else(|| with.preloaded.clone()),
            name,
        })
        .collect()
}

/// Output of a dynamic loader that lists a program's libraries.
#[derive(Default)]
struct Listing {
    /// Name and path of each library.
    libraries: Vec<(String, String)>,
    /// Path of urxe's library, if the loader preloads it.
    preloaded: Option<String>,
    /// Errors that the loader printed to standard error.
    errors: Vec<String>,
    /// Whether the loader failed, which means that the program cannot start.
    has_failed: bool,
}

impl Listing {
    /// Makes the loader list the program's libraries, without starting the program.
    fn of(loader: &Path, program: &Path, environment: Environment<'_>) -> std::io::Result<Listing> {
        let mut command = Command::new(loader);
        command.arg("--list").arg(program);
        for (name, value) in environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let out = command.output()?;
        let text = String::from_utf8_lossy(&out.stdout);
        let error = String::from_utf8_lossy(&out.stderr);
        Ok(Listing { has_failed: !out.status.success(), ..Listing::parse(&text, &error) })
    }

    /// Parses the loader's standard output and standard error.
    fn parse(text: &str, error: &str) -> Listing {
        // The loader accepts a library without versions.
        let errors = error.lines().filter(|line| !line.contains("no version information"));
        let mut listing = Listing { errors: errors.map(str::to_owned).collect(), ..Listing::default() };
        for line in text.lines() {
            // Behind the path is the address in parentheses.
            let line = line.rsplit_once(" (0x").map_or(line, |(line, _)| line).trim();
            let (name, path) = line.split_once(" => ").unwrap_or((line, line));
            if Path::new(path).file_name() == Some(OsStr::new(VERBS_LIBRARY)) {
                listing.preloaded = Some(path.to_owned());
            } else {
                listing.libraries.push((name.to_owned(), path.to_owned()));
            }
        }
        listing
    }

    fn find(&self, name: &str) -> Option<String> {
        self.libraries.iter().find(|(own, _)| own == name).map(|(_, path)| path.clone())
    }
}

/// Returns the interpreter of a script and its arguments: the words after `#!`, or the shell that executes a
/// text file without this line. Returns `None` if the file is not a script.
fn script_interpreter(bytes: &[u8]) -> Option<Vec<String>> {
    let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let Some(line) = first.strip_prefix(b"#!") else {
        // The test of shells: a binary file has a zero byte in its first line.
        return (!first.contains(&0)).then(|| vec![SHELL.into()]);
    };
    let words: Vec<String> = String::from_utf8_lossy(line).split_whitespace().map(str::to_owned).collect();
    (!words.is_empty()).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_of_a_loader_yields_libraries_and_the_preloaded_one() {
        let text = "\tlinux-vdso.so.1 (0x00007ffe0d5c9000)\n\
            \t/run/urxe-0/c2/liburxe_verbs.so (0x00007fa5a6200000)\n\
            \tlibibverbs-1de1263b.so.1 => /opt/x.libs/libibverbs-1de1263b.so.1 (0x00007fa5a5e00000)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007fa5a6800000)\n";
        let listing = Listing::parse(text, "one\nx: no version information available\ntwo\n");
        assert_eq!(listing.preloaded.as_deref(), Some("/run/urxe-0/c2/liburxe_verbs.so"));
        let bundled = Some("/opt/x.libs/libibverbs-1de1263b.so.1".to_owned());
        assert_eq!(listing.find("libibverbs-1de1263b.so.1"), bundled);
        assert_eq!((listing.find("libibverbs.so.1"), listing.libraries.len()), (None, 3));
        assert_eq!(listing.errors, ["one", "two"]);
    }

    #[test]
    fn script_interpreter_is_in_the_first_line_or_is_the_shell() {
        let words = |text: &str| script_interpreter(text.as_bytes()).map(|words| words.join("|"));
        assert_eq!(words("#!/bin/sh -e\nexit\n").as_deref(), Some("/bin/sh|-e"));
        assert_eq!(words("#! /usr/bin/env python3").as_deref(), Some("/usr/bin/env|python3"));
        assert_eq!([words("exit\n"), words("")].map(Option::unwrap), [SHELL, SHELL]);
        assert_eq!([words("#!\n"), words("\x7fE\0F")], [None, None]);
    }
}
