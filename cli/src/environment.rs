//! Environment variables that commands read or set, for their man pages.
#![forbid(unsafe_code)]

use clap::Command;

use super::nic_args::SHARED_MEMORY;

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

/// Variables that the library in a program reads, and the option that sets each, or a description. The
/// variable of `--shared-memory` is not among them, because commands read it too.
const LIBRARY: [(&str, &str); 18] = [
    ("URXE_LINK=LINK", "link"),
    ("URXE_SHARDS=N", "shards"),
    ("URXE_OFFLOAD=0", "no_offload"),
    ("URXE_ANY_USER=1", "any_user"),
    ("URXE_ALWAYS_ICRC=1", "always_icrc"),
    ("URXE_FAULTS=RULE;RULE...", "faults"),
    ("URXE_SEED=N", "seed"),
    ("URXE_CAPTURE=FILE", "capture"),
    ("URXE_EXPLAIN=1", "explain"),
    ("URXE_MIN_ACK_TIMEOUT=SECONDS", "min_ack_timeout"),
    ("URXE_CONGESTION=CONTROL", "congestion"),
    ("URXE_PERSONALITY=CLASS", "personality"),
    ("URXE_NAME=NAME", "name"),
    ("URXE_WARNINGS=1", "no_warnings"),
    ("URXE_LID_ROUTING=1", "lid_routing"),
    ("URXE_DMA_BUF=1", "dma_buf"),
    ("URXE_PROGRAM=FILE", "The urxe executable, which shares addresses among programs."),
    ("URXE_SYSFS=DIR", "Files that the program sees in /sys and /dev."),
];

/// Sections of a man page with variables: each has a title, an introduction, and variables with their
/// descriptions.
type Section = (&'static str, &'static str, Vec<(&'static str, String)>);

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
    let read = read.into_iter().map(|(name, text)| (name, text.to_owned())).collect();
    let mut sections = vec![("ENVIRONMENT", "The command reads these variables.", read)];
    if option("name").is_some() {
        let describe =
            |text: &str| match option(text).and_then(|arg| Some((arg.get_long()?, arg.get_help()?))) {
                // Warnings are the only variable that an option omits.
                Some((long, _)) if long == "no-warnings" => format!("Without --{long}."),
                Some((long, help)) => format!("--{long}: {help}."),
                None => text.to_owned(),
            };
        let set = LIBRARY.iter().map(|(name, text)| (*name, describe(text))).collect();
        let introduction = "The options set these variables, which the library reads in the program. In the environment of \
             urxe itself they are ignored, with a warning.";
        sections.push(("ENVIRONMENT OF THE PROGRAM", introduction, set));
    }
    sections
}
