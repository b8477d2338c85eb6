//! `urxe completions` and `urxe package-files`: shell completions and man pages, generated from the command
//! line's definition.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Arg, Args, Command, ValueHint};
use clap_complete::{Shell, generate};
use clap_mangen::Man;

use super::{CliError, environment};

/// Name of the executable.
const NAME: &str = "urxe";

/// Texts that `urxe help` prints like the help of a command.
const TOPICS: [&str; 2] = ["links", "faults"];

/// Function that calls clap's with the whole word before the cursor: bash splits words at `:` and `=`. After
/// one of these, no space follows a completed value.
const BASH_VALUES: &str = r#"
_urxe_values() {
    local before=${COMP_LINE:0:COMP_POINT} word
    word=${before##* } before=${before% *}
    case $word in
    -*) _urxe "$@" ;;
    *) _urxe "$1" "$word" "${before##* }"; COMPREPLY=("${COMPREPLY[@]#"${word%"$2"}"}") ;;
    esac
    case ${COMPREPLY[0]} in *[:=]) compopt -o nospace ;; esac
}
"#;

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
    #[arg(value_name = "PREFIX", value_hint = ValueHint::DirPath)]
    prefix: PathBuf,
}

impl Completions {
    /// Prints the script for the shell.
    pub fn run(&self, mut command: Command) -> Result<(), CliError> {
        Ok(io::stdout().write_all(script(self.shell, &mut command).as_bytes())?)
    }
}

/// Returns the completion script of a shell.
fn script(shell: Shell, command: &mut Command) -> String {
    let mut script = Vec::new();
    generate(shell, command, NAME, &mut script);
    let script = String::from_utf8_lossy(&script);
    match shell {
        Shell::Bash => {
            let register = "complete -F _urxe";
            format!("{BASH_VALUES}{}", script.replace(register, &format!("{register}_values")))
        }
        _ => script.into_owned(),
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
            write(&self.prefix.join(path), script(shell, &mut command).as_bytes())?;
        }
        pages.build();
        let is_topic = |page: &Command| TOPICS.contains(&page.get_name());
        let has_page = |page: &&Command| is_topic(page) || !page.is_hide_set();
        for page in std::iter::once(&pages).chain(pages.get_subcommands().filter(has_page)) {
            let name = page.get_display_name().unwrap_or(NAME);
            let section = if is_topic(page) { "7" } else { "1" };
            let path = self.prefix.join(format!("share/man/man{section}/{name}.{section}"));
            write(&path, &man_page(page, section)?)?;
        }
        Ok(())
    }
}

/// Renders the man page of a command or, in section 7, of a topic, in roff.
fn man_page(command: &Command, section: &str) -> io::Result<Vec<u8>> {
    let manual = "urxe";
    let page = Man::new(command.clone().mut_args(keep_lines))
        .manual(manual)
        .section(section)
        .source(format!("{manual} {}", env!("CARGO_PKG_VERSION")));
    let mut out = Vec::new();
    page.render_title(&mut out)?;
    page.render_name_section(&mut out)?;
    if section == "7" {
        let text = command.get_long_about().map(ToString::to_string).unwrap_or_default();
        writeln!(out, ".SH DESCRIPTION\n.nf\n{}", roff(&text))?;
        return Ok(out);
    }
    page.render_synopsis_section(&mut out)?;
    page.render_description_section(&mut out)?;
    page.render_options_section(&mut out)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut out)?;
    }
    if let Some(text) = command.get_after_help() {
        out.extend(examples_section(&text.to_string()).bytes());
    }
    for (title, introduction, variables) in environment::sections(command) {
        writeln!(out, ".SH {title}\n{}", roff(introduction))?;
        for (name, text) in variables {
            writeln!(out, ".TP\n\\fB{}\\fR\n{}", roff(&name), roff(&text))?;
        }
    }
    Ok(out)
}

/// Escapes lines of text. One that begins with a dot or a quote would be a request.
fn roff(text: &str) -> String {
    let line = |line: &str| format!("\\&{}", line.replace('\\', "\\e").replace('-', "\\-"));
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Keeps the line breaks of an argument's help in the man page, by a leading space: roff starts a new line
/// there.
fn keep_lines(arg: Arg) -> Arg {
    let Some(help) = arg.get_long_help().map(ToString::to_string) else { return arg };
    let is_table = |paragraph: &str| paragraph.contains('\n');
    let indented = |text: &str| text.lines().map(|line| format!(" {line}")).collect::<Vec<_>>().join("\n");
    let keep = |paragraph: &str| if is_table(paragraph) { indented(paragraph) } else { paragraph.to_owned() };
    arg.long_help(help.split("\n\n").map(keep).collect::<Vec<_>>().join("\n\n"))
}

/// Converts the text after the options of `--help`, examples and then notes, to man page sections.
/// clap_mangen would join the lines of the examples.
fn examples_section(text: &str) -> String {
    let (mut out, mut in_notes) = (String::from(".SH EXAMPLES\n.nf\n"), false);
    for line in text.lines().filter(|line| !matches!(*line, "" | "Examples:" | "Example:")) {
        if !in_notes && !line.starts_with(' ') {
            out.push_str(".fi\n.SH NOTES\n");
            in_notes = true;
        }
        out.push_str(&roff(line.strip_prefix("  ").unwrap_or(line)));
        out.push('\n');
    }
    out
}

/// Writes a file, and creates its directory if that is missing.
fn write(path: &Path, contents: &[u8]) -> Result<(), CliError> {
    let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(path, contents));
    written.map_err(CliError::io(format!("cannot write {}", path.display())))
}
