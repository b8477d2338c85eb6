//! Table of test results, printed even if the test harness captures output.

use std::io::Write;

/// Markdown table with aligned columns; the first row is the heading.
pub struct Table {
    name: String,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(name: &str, heading: &[&str]) -> Table {
        Table { name: name.into(), rows: vec![heading.iter().map(|s| s.to_string()).collect()] }
    }

    pub fn row(&mut self, cells: &[String]) {
        self.rows.push(cells.to_vec());
    }

    fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| {
            self.rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = format!("\n### {}\n\n", self.name);
        for (i, row) in self.rows.iter().enumerate() {
            let cells: Vec<String> = widths
                .iter()
                .enumerate()
                .map(|(c, w)| format!("{:w$}", row.get(c).map_or("", |s| s)))
                .collect();
            out += &format!("| {} |\n", cells.join(" | "));
            if i == 0 {
                let rule: Vec<String> = widths.iter().map(|w| "-".repeat(*w)).collect();
                out += &format!("| {} |\n", rule.join(" | "));
            }
        }
        out
    }

    /// Prints the table to standard error, bypassing the test harness's output capture, and writes it to
    /// `interop-NAME.md` in the [directory](crate::artifacts::directory).
    pub fn print(&self) {
        let text = self.text();
        let _ = std::io::stderr().write_all(text.as_bytes());
        let name = format!("interop-{}.md", self.name.replace(' ', "-"));
        let file = crate::artifacts::directory().join(name);
        std::fs::write(&file, text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
}
