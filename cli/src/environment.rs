//! Environment variables that commands read or set, for their man pages.

use clap::Command;

use super::nic_args::SHARED_MEMORY;
use super::run::VARIABLES;

/// Variables of every command.
const COMMON: [(&str, &str); 2] = [
    ("URXE_LOG", "Level of events printed to standard error: off, error, warn, info, debug or trace."),
    ("NO_COLOR", "If it is set, texts have no colours."),
];

/// Variables that commands read which prepare the environment of a program.
const PREPARATION: [(&str, &str); 7] = [
    ("URXE_LIBRARY", "File in place of the libibverbs.so that urxe contains."),
    ("URXE_PRELOAD", "File in place of the liburxe_preload.so that urxe contains."),
    ("XDG_RUNTIME_DIR", "Directory for the private directory of urxe, if it is private and writable."),
    ("TMPDIR", "Directory for the private directory of urxe otherwise; by default /tmp."),
    ("LD_LIBRARY_PATH", "Its directories follow that of urxe's libraries."),
    ("LD_PRELOAD", "Its libraries precede those of urxe."),
    ("ASAN_OPTIONS", "Extended so that programs with AddressSanitizer start with preloaded libraries."),
];

/// Sections of a man page with variables: each has a title, an introduction, and variables with their
/// descriptions.
type Section = (&'static str, &'static str, Vec<(String, String)>);

/// Returns the sections for a command.
pub fn sections(command: &Command) -> Vec<Section> {
    let option = |id: &str| command.get_arguments().find(|arg| arg.get_id() == id);
    let mut read = COMMON.to_vec();
    if option("shared_memory").is_some() {
        read.push((SHARED_MEMORY, "Default of --shared-memory."));
    }
    if option("program").is_some() {
        read.push(("PATH", "Directories in which PROGRAM is searched for."));
    }
    if matches!(command.get_name(), "run" | "env" | "doctor") {
        read.extend(PREPARATION);
    }
    let read = read.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
    let mut sections = vec![("ENVIRONMENT", "The command reads these variables.", read)];
    if option("name").is_some() {
        let describe =
            |text: &str| match option(text).and_then(|arg| Some((arg.get_long()?, arg.get_help()?))) {
                // Warnings are the only variable that an option omits.
                Some((long, _)) if long == "no-warnings" => format!("Without --{long}."),
                Some((long, help)) => format!("--{long}: {help}."),
                None => text.to_owned(),
            };
        let set =
            VARIABLES.iter().map(|of| (format!("{}={}", of.name, of.value), describe(of.source))).collect();
        let introduction = "The options set these variables, which the library reads in the program. In the environment of \
             urxe itself they are ignored, with a warning.";
        sections.push(("ENVIRONMENT OF THE PROGRAM", introduction, set));
    }
    sections
}
