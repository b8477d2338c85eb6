//! Comparison of the struct layouts with those that the C compiler computes from the installed headers.

#[allow(unreachable_pub, reason = "integration tests use it too")]
#[path = "../../../tests/support/requirement.rs"]
mod requirement;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use super::cm::NESTED_CM;
use super::later::{self, FIELDS};
use super::work::NESTED;
use super::{LAYOUTS, Layout};

/// The librdmacm header, which includes the libibverbs one.
const HEADER: &str = "rdma/rdma_cma.h";

/// Reports whether the headers are installed.
fn has_headers() -> bool {
    let exists = Path::new("/usr/include").join(HEADER).exists();
    requirement::is_met(exists, "the header rdma/rdma_cma.h is missing (apt-get install librdmacm-dev)")
}

/// Reports whether the headers declare the operand of `sizeof`.
fn is_declared(operand: &str) -> bool {
    let probe = format!("#include <{HEADER}>\nint size = sizeof({operand});\n");
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("probe.c");
    std::fs::write(&source, probe).unwrap();
    let out = Command::new("cc").arg("-fsyntax-only").arg(&source).output();
    out.expect("a C compiler (apt-get install gcc)").status.success()
}

/// Compiles a C program with the installed headers, runs it, and returns its output.
fn run_c(program: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let (source, binary) = (dir.path().join("layout.c"), dir.path().join("layout"));
    std::fs::write(&source, program).unwrap();
    let out = Command::new("cc")
        .arg("-o")
        .args([&binary, &source])
        .output()
        .expect("a C compiler (apt-get install gcc)");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(Command::new(&binary).output().unwrap().stdout).unwrap()
}

/// Returns the structs to compare. The header declares `ibv_buf` without its fields.
fn structs(with_later: bool) -> impl Iterator<Item = &'static (&'static str, Layout)> {
    let later = if with_later { later::LAYOUTS } else { &[] };
    LAYOUTS.into_iter().flatten().chain(later.iter().filter(|(name, _)| *name != "ibv_buf"))
}

#[test]
fn struct_layouts_match_the_c_compiler() {
    if !has_headers() {
        return;
    }
    let mut program = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include <{HEADER}>\n\
         #define S(s) printf(#s \" %zu\\n\", sizeof(struct s));\n\
         #define F(s, f) printf(#s \" \" #f \" %zu %zu\\n\", offsetof(struct s, f), sizeof(((struct s *)0)->f));\n\
         #define B(s, f) printf(#s \" \" #f \" %zu %zu\\n\", sizeof(struct s) - offsetof(struct s, f), \
         sizeof(((struct s *)0)->f));\n\
         #define N(s, f) printf(#s \" \" #f \" %zu\\n\", offsetof(struct s, f));\n\
         int main(void) {{\n"
    );
    let mut ours = String::new();
    let with_later = is_declared("struct ibv_comp_cntr_caps");
    for (name, s) in structs(with_later) {
        let is_missing = |field: &str| !is_declared(&format!("((struct {name} *)0)->{field}"));
        let later = FIELDS.iter().find(|(of, field)| of == name && is_missing(field)).map(|(_, field)| field);
        // The field `sz` tells programs how much of this struct there is.
        let may_be_shorter = *name == "verbs_context";
        if later.is_none() && !may_be_shorter {
            writeln!(program, "S({name})").unwrap();
            writeln!(ours, "{name} {}", s.size).unwrap();
        }
        for (field, offset, size) in s.fields.iter().filter(|(field, ..)| Some(field) != later) {
            let field = field.trim_start_matches("r#");
            // Programs find the fields of this struct from its end.
            let (macro_name, at) = if may_be_shorter { ("B", s.size - offset) } else { ("F", *offset) };
            writeln!(program, "{macro_name}({name}, {field})").unwrap();
            writeln!(ours, "{name} {field} {at} {size}").unwrap();
        }
    }
    for (name, field, offset) in NESTED.iter().chain(NESTED_CM) {
        writeln!(program, "N({name}, {field})").unwrap();
        writeln!(ours, "{name} {field} {offset}").unwrap();
    }
    program.push_str("return 0; }\n");
    let theirs = run_c(&program);
    let differ: Vec<_> = ours.lines().zip(theirs.lines()).filter(|(a, b)| a != b).collect();
    assert!(differ.is_empty(), "ours and C's: {differ:#?}");
    assert_eq!(ours.lines().count(), theirs.lines().count());
    assert!(structs(with_later).count() > 70 && ours.lines().count() > 580, "{} lines", ours.lines().count());
}
