//! The commands and messages of README.md, `docs/PERFORMANCE.md` and the guide. Every `sh` block is run in a
//! network namespace, against the command and the libraries built for the tests, unless a comment before the
//! block gives a reason not to. Every message of the troubleshooting page is compared with the sources. The
//! Rust blocks are documentation tests of the package urxe; `python/tests/test_guide.py` runs the Python
//! blocks.

use std::fs;
use std::path::{Path, PathBuf};

use urxe_test_support::huge_pages;
use urxe_test_support::programs::{built, in_namespace};

/// Languages of the code blocks that are not run.
const LANGUAGES: [&str; 6] = ["text", "toml", "rust", "python", "yaml", "dockerfile"];

/// Header of the tables that list messages of urxe.
const MESSAGE_TABLE: &str = "| message | cause | remedy |";

/// Page whose messages are compared with the sources.
const TROUBLESHOOTING: &str = "docs/guide/troubleshooting.md";

/// A fenced code block.
struct Block {
    /// Line of the opening fence, from 1.
    line: usize,
    language: String,
    text: String,
    mark: Option<Mark>,
}

/// Comment in the line before a block.
enum Mark {
    /// `<!-- not run: REASON -->`.
    NotRun(String),
    /// `<!-- prints: TEXT -->`: the output must contain TEXT.
    Prints(String),
}

impl Mark {
    fn parse(line: &str) -> Option<Mark> {
        let comment = line.strip_prefix("<!--")?.strip_suffix("-->")?.trim();
        let (kind, value) = comment.split_once(": ")?;
        match kind {
            "not run" => Some(Mark::NotRun(value.into())),
            "prints" => Some(Mark::Prints(value.into())),
            _ => None,
        }
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("URXE_REPOSITORY"))
}

fn read(document: &str) -> String {
    fs::read_to_string(root().join(document)).unwrap_or_else(|e| panic!("{document}: {e}"))
}

/// Returns the paths of the guide's pages, relative to the root of the repository.
fn guide_pages() -> Vec<String> {
    let entries = fs::read_dir(root().join("docs/guide")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut pages: Vec<String> = names.map(|name| format!("docs/guide/{name}")).collect();
    pages.sort();
    pages
}

fn documents() -> Vec<String> {
    let fixed = ["README.md", "docs/GUIDE.md", "docs/PERFORMANCE.md"].map(String::from).to_vec();
    [fixed, guide_pages()].concat()
}

/// Returns the code blocks of a document.
///
/// # Panics
/// If a fence is not closed.
fn blocks(document: &str) -> Vec<Block> {
    let text = read(document);
    let mut lines = text.lines().enumerate();
    let (mut blocks, mut previous) = (Vec::new(), "");
    while let Some((number, line)) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let mut body = String::new();
            loop {
                let (_, line) =
                    lines.next().unwrap_or_else(|| panic!("{document}:{}: unclosed block", number + 1));
                if line == "```" {
                    break;
                }
                body.push_str(line);
                body.push('\n');
            }
            let mark = Mark::parse(previous);
            blocks.push(Block { line: number + 1, language: language.into(), text: body, mark });
            previous = "";
        } else {
            previous = line;
        }
    }
    blocks
}

/// Runs the `sh` blocks of a document, except those marked as not run, each in a new namespace and an empty
/// directory. Returns the number of blocks that were run.
fn run_blocks(document: &str) -> usize {
    let urxe = built("urxe").expect("urxe is not built: run cargo build --workspace");
    let directory = urxe.parent().unwrap().display().to_string();
    let path = format!("{directory}:{}", std::env::var("PATH").unwrap_or_default());
    let mut count = 0;
    for block in blocks(document).iter().filter(|block| block.language == "sh") {
        let expected = match &block.mark {
            Some(Mark::NotRun(reason)) => {
                println!("{document}:{}: not run: {reason}", block.line);
                continue;
            }
            Some(Mark::Prints(text)) => Some(text),
            None => None,
        };
        println!("{document}:{}", block.line);
        let script = format!("set -eu\nip link set lo up\ncd \"$DIR\"\n{}", block.text);
        let printed = in_namespace(&script, &[("PATH", path.as_str())]);
        if let Some(text) = expected {
            assert!(printed.contains(text.as_str()), "{document}:{}: no '{text}' in:\n{printed}", block.line);
        }
        count += 1;
    }
    count
}

#[test]
fn commands_of_the_readme_succeed() {
    assert!(run_blocks("README.md") > 0, "README.md has no command that can be run");
}

#[test]
fn commands_of_the_guide_succeed() {
    let _huge_pages = huge_pages::leave();
    let ran: usize =
        documents().iter().filter(|page| *page != "README.md").map(|page| run_blocks(page)).sum();
    assert!(ran >= 15, "the guide has only {ran} blocks that can be run");
}

#[test]
fn every_code_block_names_its_language_and_every_comment_precedes_commands() {
    for document in documents() {
        for Block { line, language, mark, .. } in blocks(&document) {
            let place = format!("{document}:{line}");
            let is_sh = language == "sh";
            assert!(is_sh || LANGUAGES.contains(&language.as_str()), "{place}: language '{language}'");
            assert!(is_sh || mark.is_none(), "{place}: a comment about commands before '{language}'");
        }
        let marks = read(&document).lines().filter(|line| line.starts_with("<!--")).count();
        let used = blocks(&document).iter().filter(|block| block.mark.is_some()).count();
        assert_eq!(
            marks, used,
            "{document}: a comment that is not the line before a block, or of unknown form"
        );
    }
}

#[test]
fn every_page_is_in_the_table_of_the_guide_and_in_the_readme() {
    for page in guide_pages() {
        let name = page.strip_prefix("docs/").unwrap();
        assert!(read("docs/GUIDE.md").contains(&format!("]({name})")), "docs/GUIDE.md lacks {page}");
        assert!(read("README.md").contains(&format!("]({page})")), "README.md lacks {page}");
    }
}

/// Appends the Rust files below a directory, with continued string literals on one line.
fn append_sources(directory: &Path, out: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            append_sources(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let mut is_continued = false;
            for line in fs::read_to_string(&path).unwrap().lines() {
                let line = if is_continued { line.trim_start() } else { line };
                is_continued = line.ends_with('\\');
                out.push_str(line.strip_suffix('\\').unwrap_or(line));
                if !is_continued {
                    out.push('\n');
                }
            }
        }
    }
}

/// Returns the message in a table row: the code span at the start of the first cell. Returns `None` if there
/// is none, or if the cell attributes the message to another program.
fn message(row: &str) -> Option<&str> {
    let (cell, _) = row.strip_prefix("| ")?.split_once(" | ")?;
    let (message, note) = match cell.strip_prefix("`` ") {
        Some(rest) => rest.split_once(" ``")?,
        None => cell.strip_prefix('`')?.split_once('`')?,
    };
    let is_foreign = note.starts_with(" (of ") && !note.starts_with(" (of `urxe");
    (!is_foreign).then_some(message)
}

#[test]
fn every_message_of_the_troubleshooting_page_is_in_the_sources() {
    let mut sources = String::new();
    for directory in ["src", "cli/src", "ibverbs/src", "preload/src"] {
        append_sources(&root().join(directory), &mut sources);
    }
    let (mut is_table, mut count) = (false, 0);
    for row in read(TROUBLESHOOTING).lines() {
        is_table = row == MESSAGE_TABLE || is_table && row.starts_with('|');
        let Some(message) = message(row).filter(|_| is_table) else { continue };
        // `…` stands for what varies.
        for part in message.split('…').map(str::trim) {
            assert!(sources.contains(part), "{TROUBLESHOOTING}: no source has '{part}' of '{message}'");
        }
        count += 1;
    }
    assert!(count > 50, "{TROUBLESHOOTING} has only {count} messages");
}
