//! `urxe completions` and `urxe package-files`: shell completions and man pages, generated from the command
//! line's definition.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Arg, Args, Command};
use clap_complete::{Shell, generate};
use clap_mangen::Man;

use super::CliError;

/// Name of the executable.
const NAME: &str = "urxe";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  eval \"$(urxe completions bash)\"        complete in this shell
  urxe completions bash >~/.local/share/bash-completion/completions/urxe
  urxe completions zsh >~/.zfunc/_urxe   in a directory of fpath
  urxe completions fish >~/.config/fish/completions/urxe.fish";

/// Print a completion script for a shell
#[derive(Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub struct Completions {
    /// Shell in which to complete
    #[arg(value_enum)]
    shell: Shell,
}

/// Write completions and man pages below the prefix of a package, such as debian/urxe/usr
#[derive(Args)]
#[command(after_help = "Examples:\n  urxe package-files debian/urxe/usr\n  urxe package-files ~/.local")]
pub struct PackageFiles {
    /// Prefix of the installed files
    #[arg(value_name = "PREFIX")]
    prefix: PathBuf,
}

impl Completions {
    /// Prints the script for the shell.
    pub fn run(&self, mut command: Command) -> Result<(), CliError> {
        let mut script = Vec::new();
        generate(self.shell, &mut command, NAME, &mut script);
        Ok(io::stdout().write_all(&script)?)
    }
}

impl PackageFiles {
    /// Writes a completion script for each shell that has a directory for them, and a man page for the
    /// command and each subcommand.
    pub fn run(&self, mut command: Command) -> Result<(), CliError> {
        // `help` would have a page of its own.
        let mut pages = command.clone().disable_help_subcommand(true);
        for (shell, path) in [
            (Shell::Bash, "share/bash-completion/completions/urxe"),
            (Shell::Zsh, "share/zsh/vendor-completions/_urxe"),
            (Shell::Fish, "share/fish/vendor_completions.d/urxe.fish"),
        ] {
            let mut script = Vec::new();
            generate(shell, &mut command, NAME, &mut script);
            write(&self.prefix.join(path), &script)?;
        }
        pages.build();
        let directory = self.prefix.join("share/man/man1");
        for page in std::iter::once(&pages).chain(pages.get_subcommands().filter(|c| !c.is_hide_set())) {
            let name = page.get_display_name().unwrap_or(NAME);
            write(&directory.join(format!("{name}.1")), &man_page(page)?)?;
        }
        Ok(())
    }
}

/// Renders a command's man page in roff.
fn man_page(command: &Command) -> io::Result<Vec<u8>> {
    let manual = "urxe";
    let page = Man::new(command.clone().mut_args(keep_lines))
        .manual(manual)
        .source(format!("{manual} {}", env!("CARGO_PKG_VERSION")));
    let mut out = Vec::new();
    page.render_title(&mut out)?;
    page.render_name_section(&mut out)?;
    page.render_synopsis_section(&mut out)?;
    page.render_description_section(&mut out)?;
    page.render_options_section(&mut out)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut out)?;
    }
    if let Some(text) = command.get_after_help() {
        out.extend(examples_section(&text.to_string()).bytes());
    }
    Ok(out)
}

/// Keeps the line breaks of an argument's help in the man page, by a leading space: roff starts a new line there.
fn keep_lines(arg: Arg) -> Arg {
    let Some(help) = arg.get_long_help().map(ToString::to_string) else { return arg };
    let is_table = |paragraph: &str| paragraph.contains('\n');
    let indented = |text: &str| text.lines().map(|line| format!(" {line}")).collect::<Vec<_>>().join("\n");
    let keep = |paragraph: &str| if is_table(paragraph) { indented(paragraph) } else { paragraph.to_owned() };
    arg.long_help(help.split("\n\n").map(keep).collect::<Vec<_>>().join("\n\n"))
}

/// Converts the text after the options of `--help`, examples and then notes, to man page sections. clap_mangen
/// would join the lines of the examples.
fn examples_section(text: &str) -> String {
    let (mut out, mut in_notes) = (String::from(".SH EXAMPLES\n.nf\n"), false);
    for line in text.lines().filter(|line| !matches!(*line, "" | "Examples:" | "Example:")) {
        if !in_notes && !line.starts_with(' ') {
            out.push_str(".fi\n.SH NOTES\n");
            in_notes = true;
        }
        // A line that begins with a dot or a quote would be a request.
        out.push_str("\\&");
        out.push_str(&line.strip_prefix("  ").unwrap_or(line).replace('\\', "\\e").replace('-', "\\-"));
        out.push('\n');
    }
    out
}

/// Writes a file, and creates its directory if that is missing.
fn write(path: &Path, contents: &[u8]) -> Result<(), CliError> {
    let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(path, contents));
    written.map_err(|source| CliError::Io { what: format!("cannot write {}", path.display()), source })
}
