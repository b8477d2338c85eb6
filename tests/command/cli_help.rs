//! Tests of the help texts, completions and man pages of the `urxe` command.

use std::process::Command;

use super::cli::{stdout, urxe};

/// Returns the names of the subcommands that `urxe --help` lists.
fn subcommands() -> Vec<String> {
    let help = stdout(&urxe(&["--help"]).output().unwrap());
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let name =
        |line: &str| line.split_whitespace().next().filter(|_| line.as_bytes()[2] != b' ').map(str::to_owned);
    listed.filter_map(name).filter(|name| name != "help").collect()
}

#[test]
fn every_help_text_has_examples_of_its_command() {
    let all = subcommands();
    assert!(all.len() >= 8 && all.iter().any(|name| name == "run"), "{all:?}");
    for name in all.iter().map(String::as_str).chain(["broker", "package-files"]) {
        for option in ["-h", "--help"] {
            let help = stdout(&urxe(&[name, option]).output().unwrap());
            let (_, examples) =
                help.split_once("\nExample").unwrap_or_else(|| panic!("urxe {name} {option}: {help}"));
            assert!(examples.contains(&format!("urxe {name}")), "urxe {name} {option}: {help}");
        }
    }
}

/// Maximum size of `-h`, in lines and columns, so that it fits on a screen.
const SCREEN: (usize, usize) = (50, 100);

#[test]
fn short_help_of_every_command_fits_on_a_screen() {
    let all = subcommands();
    let others = ["broker", "package-files"];
    for name in all.iter().map(|name| Some(name.as_str())).chain(others.map(Some)).chain([None]) {
        let args: Vec<&str> = name.into_iter().chain(["-h"]).collect();
        let help = stdout(&urxe(&args).output().unwrap());
        let width = help.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(help.lines().count() <= SCREEN.0 && width <= SCREEN.1, "urxe {args:?}:\n{help}");
    }
}

/// Returns the lines of a help text about the options of the NIC that are common to all commands.
fn nic_options(command: &str, option: &str) -> String {
    let help = stdout(&urxe(&[command, option]).output().unwrap());
    let (_, options) =
        help.split_once("\nNIC options:\n").unwrap_or_else(|| panic!("urxe {command}: {help}"));
    options.split("\n      --gid").next().unwrap().split("\n\nExamples:").next().unwrap().trim_end().into()
}

#[test]
fn commands_that_open_a_nic_have_the_same_options_for_it() {
    for option in ["-h", "--help"] {
        let expected = nic_options("run", option);
        for name in [
            "--link",
            "--ip",
            "--shared-memory",
            "--fault",
            "--capture",
            "--qlog",
            "--explain",
            "--patient",
            "--congestion",
        ] {
            assert!(expected.contains(&format!(" {name}")), "{name}: {expected}");
        }
        for command in ["env", "perf", "pingpong", "serve"] {
            assert_eq!(nic_options(command, option), expected, "urxe {command} {option}");
        }
    }
    let [run, devinfo] = ["run", "devinfo"].map(|name| stdout(&urxe(&[name, "--help"]).output().unwrap()));
    let entry =
        |help: &str| help.split_once("--link <LINK>").unwrap().1.split_once("--ip").unwrap().0.to_owned();
    assert_eq!(entry(&run), entry(&devinfo));
}

#[test]
fn help_topics_have_the_texts_that_options_refer_to() {
    for (topic, option, needles) in [
        ("links", "--link", ["packet:IF", "frames:dgram:LOCAL,REMOTE", "fabric", "CAP_NET_RAW"]),
        (
            "faults",
            "--fault",
            ["read-response-middle", "every:13", "call:ibv_reg_mr=ENOMEM@2", "cm:rej=REASON"],
        ),
    ] {
        let text = stdout(&urxe(&["help", topic]).output().unwrap());
        assert!(needles.iter().all(|needle| text.contains(needle)), "{topic}: {text}");
        assert!(text.contains(option) && text.lines().all(|line| line.len() <= 80), "{topic}: {text}");
        assert_eq!(stdout(&urxe(&[topic]).output().unwrap()).trim_end(), text.trim_end());
        assert!(nic_options("perf", "-h").contains(&format!("`urxe help {topic}`")));
    }
    assert!(stdout(&urxe(&["help", "serve"]).output().unwrap()).contains("Usage: urxe serve"));
}

#[test]
fn bash_completes_commands_and_options() {
    let script = stdout(&urxe(&["completions", "bash"]).output().unwrap());
    // Bash splits words at colons and equals signs.
    let completed = |line: &str| {
        let words = line.replace(':', " : ").replace('=', " = ");
        let words = if line.ends_with([' ', ':', '=']) { format!("{words} ''") } else { words };
        let index = words.split_whitespace().count() - 1;
        let test = format!(
            "{script}\nCOMP_WORDS=({words}); COMP_CWORD={index}; COMP_LINE='{line}'; COMP_POINT={}; _urxe_values urxe \
             \"${{COMP_WORDS[{index}]}}\" \"${{COMP_WORDS[{}]}}\"; echo \"${{COMPREPLY[@]}}\"",
            line.len(),
            index - 1
        );
        stdout(&Command::new("bash").args(["--norc", "-c", &test]).output().unwrap())
    };
    assert_eq!(completed("urxe devi"), "devinfo\n");
    assert_eq!(completed("urxe run --person"), "--personality\n");
    for (line, values) in [
        ("urxe run --personality r", "rxe"),
        ("urxe perf write --shared-memory ", "off auto require"),
        ("urxe serve --mtu 1", "1024"),
        ("urxe env --congestion dcqcn:s", "sigcomm15"),
        ("urxe serve --link fr", "frames:dgram: frames:listen: frames:connect:"),
        ("urxe serve --link frames:", "dgram: listen: connect:"),
        ("urxe devinfo --link fa", "fabric"),
        ("urxe run --fault re", "replay= reorder="),
        ("urxe pingpong --service u", "uc ud"),
        ("urxe help lin", "links"),
    ] {
        assert_eq!(completed(line), format!("{values}\n"), "{line}");
    }
    for (shell, start) in
        [("zsh", "#compdef urxe"), ("fish", "# Print an optspec"), ("elvish", "\nuse builtin")]
    {
        let script = stdout(&urxe(&["completions", shell]).output().unwrap());
        assert!(script.starts_with(start) && script.contains("devinfo"), "{shell}: {script}");
    }
}

#[test]
fn package_files_has_a_completion_for_each_shell_and_a_man_page_for_each_command() {
    let dir = tempfile::tempdir().unwrap();
    let output = urxe(&["package-files", dir.path().to_str().unwrap()]).output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    for path in [
        "share/bash-completion/completions/urxe",
        "share/zsh/vendor-completions/_urxe",
        "share/fish/vendor_completions.d/urxe.fish",
    ] {
        assert!(std::fs::read_to_string(dir.path().join(path)).unwrap().contains("pingpong"), "{path}");
    }
    let pages = dir.path().join("share/man/man1");
    let mut names: Vec<String> = std::fs::read_dir(&pages)
        .unwrap()
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let mut expected: Vec<String> = subcommands().iter().map(|name| format!("urxe-{name}.1")).collect();
    expected.push("urxe.1".into());
    expected.sort();
    assert_eq!(names, expected);
    for topic in ["links", "faults"] {
        let page =
            std::fs::read_to_string(dir.path().join(format!("share/man/man7/urxe-{topic}.7"))).unwrap();
        assert!(page.contains(".SH DESCRIPTION") && page.contains("7  \"urxe"), "{page}");
    }
    // The variables that the library reads, and those that the command sets.
    let library = std::fs::read_to_string(concat!(env!("URXE_REPOSITORY"), "/ibverbs/src/env.rs")).unwrap();
    let run = std::fs::read_to_string(pages.join("urxe-run.1")).unwrap();
    let set = stdout(&urxe(&["env", "--ip", "127.0.0.1"]).output().unwrap());
    let words = library.split(|c: char| !c.is_ascii_uppercase() && c != '_');
    let set = set.lines().filter_map(|line| line.split([' ', '=']).nth(1));
    for variable in words.filter(|word| word.starts_with("URXE_")).chain(set) {
        assert!(run.contains(&format!("fB\\&{variable}")), "{variable} is not in urxe-run(1)");
    }
    for name in names {
        let page = std::fs::read_to_string(pages.join(&name)).unwrap();
        for section in [".TH", ".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", ".SH EXAMPLES", ".SH ENVIRONMENT"] {
            assert!(page.contains(section), "{section} is not in {name}:\n{page}");
        }
    }
}
