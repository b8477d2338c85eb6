//! The terminal view of `urxe top`: a list of NICs and queue pairs, and the details of one queue pair.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::backend::Backend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Paragraph, Row, Table, TableState, Wrap};

use crate::CliError;
use crate::live::table::{self, TITLES, columns, nic_line, nic_notes, printable};
use crate::live::{Nic, View};
use urxe::verbs::live::QpSnapshot;

/// Longest wait for a key, so that a change of the terminal's size is shown soon.
const KEY_WAIT: Duration = Duration::from_millis(200);

/// State of the terminal view.
#[derive(Default)]
struct Screen {
    view: View,
    /// The selected queue pair: process and number.
    selected: Option<(u32, u32)>,
    shows_details: bool,
    is_paused: bool,
    table: TableState,
}

/// Shows the view until the user quits. `take` returns the next view, given the one before.
pub fn show(interval: Duration, take: impl Fn(&View) -> View) -> Result<(), CliError> {
    if !io::stdout().is_terminal() {
        return Err(CliError::Usage("standard output is not a terminal: use `urxe top --once`".into()));
    }
    let mut terminal = ratatui::try_init().map_err(CliError::io("cannot set up the terminal"))?;
    let result = run(&mut terminal, interval, take);
    ratatui::restore();
    result.map_err(CliError::io("terminal"))
}

fn run<B: Backend<Error = io::Error>>(
    terminal: &mut ratatui::Terminal<B>,
    interval: Duration,
    take: impl Fn(&View) -> View,
) -> io::Result<()> {
    let mut screen = Screen { view: take(&View::default()), ..Screen::default() };
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        let wait = next.saturating_duration_since(Instant::now()).min(KEY_WAIT);
        if event::poll(wait)?
            && let Event::Key(key) = event::read()?
            && !screen.on_key(key)
        {
            return Ok(());
        }
        if Instant::now() >= next {
            if !screen.is_paused {
                screen.view = take(&screen.view);
            }
            next = Instant::now() + interval;
        }
    }
}

impl Screen {
    /// Handles a key. Returns false if the user quits.
    fn on_key(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return true;
        }
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char('q') => return false,
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Enter => self.shows_details = self.selected.is_some() && !self.shows_details,
            KeyCode::Esc | KeyCode::Backspace => self.shows_details = false,
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            _ => {}
        }
        true
    }

    /// Returns process and number of all queue pairs, in the order of the list.
    fn qps(&self) -> Vec<(u32, u32)> {
        let of = |nic: &Nic| -> Vec<(u32, u32)> {
            let qps = nic.found.state.iter().flat_map(|state| &state.qps);
            qps.map(|qp| (nic.found.pid, qp.qpn)).collect()
        };
        self.view.nics.iter().flat_map(of).collect()
    }

    /// Selects the next queue pair, or the one before with a `step` of -1.
    fn select(&mut self, step: isize) {
        let all = self.qps();
        let current = self.selected.and_then(|selected| all.iter().position(|qp| *qp == selected));
        let next =
            current.map_or(0, |index| index.saturating_add_signed(step).min(all.len().saturating_sub(1)));
        self.selected = all.get(next).copied();
    }

    /// Returns the selected queue pair with its NIC, and what it waits for.
    fn selection(&self) -> Option<(&Nic, &QpSnapshot, &str)> {
        let (pid, qpn) = self.selected?;
        self.view.nics.iter().filter(|nic| nic.found.pid == pid).find_map(|nic| {
            let qps = &nic.found.state.as_ref().ok()?.qps;
            let index = qps.iter().position(|qp| qp.qpn == qpn)?;
            Some((nic, &qps[index], nic.qps[index].why.as_str()))
        })
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        if self.selection().is_none() {
            self.shows_details = false;
            self.select(0);
        }
        let [title, body, why, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(if self.shows_details { 0 } else { 3 }),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let (nics, qps) = (self.view.nics.len(), self.qps().len());
        let pause = if self.is_paused { "  paused" } else { "" };
        frame.render_widget(Line::from(format!("urxe top  {nics} NICs, {qps} QPs{pause}")).bold(), title);
        let text = "↑ ↓ select  Enter details  Esc back  p pause  q quit";
        frame.render_widget(Line::from(text).dim(), keys);
        match self.selection() {
            Some((nic, qp, reason)) if self.shows_details => {
                let text = Text::from_iter(details(nic, qp, reason));
                frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), body);
            }
            selection => {
                let reason = selection
                    .map_or(String::new(), |(_, qp, why)| format!("QP {:#08x}: {}", qp.qpn, printable(why)));
                frame.render_widget(Paragraph::new(reason).wrap(Wrap { trim: true }), why);
                self.draw_list(frame, body);
            }
        }
    }

    fn draw_list(&mut self, frame: &mut Frame<'_>, area: ratatui::layout::Rect) {
        if self.view.nics.is_empty() {
            return frame.render_widget(Paragraph::new(table::text(&self.view)), area);
        }
        let [header, list] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
        let cells: Vec<_> = self
            .view
            .nics
            .iter()
            .flat_map(|nic| {
                nic.found
                    .state
                    .iter()
                    .flat_map(|state| &state.qps)
                    .zip(&nic.qps)
                    .map(|(qp, view)| columns(qp, view))
            })
            .collect();
        let widths = table::widths(cells.iter());
        frame.render_widget(
            Line::from(format!("  {}", table::line(&TITLES.map(String::from), &widths))).reversed(),
            header,
        );
        let (mut rows, mut selected, mut cells) = (Vec::new(), None, cells.iter());
        for nic in &self.view.nics {
            rows.push(Row::new([nic_line(nic)]).style(Style::new().add_modifier(Modifier::BOLD)));
            rows.extend(nic_notes(nic).into_iter().map(|note| Row::new([format!("  {note}")])));
            for (qp, row) in nic.found.state.iter().flat_map(|state| &state.qps).zip(cells.by_ref()) {
                if self.selected == Some((nic.found.pid, qp.qpn)) {
                    selected = Some(rows.len());
                }
                rows.push(Row::new([format!("  {}", table::line(row, &widths))]));
            }
        }
        self.table.select(selected);
        let table =
            Table::new(rows, [Constraint::Percentage(100)]).row_highlight_style(Style::new().reversed());
        frame.render_stateful_widget(table, list, &mut self.table);
    }
}

/// Returns the details of a queue pair, line by line.
fn details<'a>(nic: &Nic, qp: &QpSnapshot, why: &str) -> Vec<Line<'a>> {
    let mut lines = vec![Line::from(nic_line(nic)).bold()];
    lines.extend(table::details(qp, why).into_iter().map(|line| Line::from(printable(&line))));
    lines
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;
    use urxe::verbs::live::{FoundNic, Silence};

    use super::*;

    /// Returns a view of two NICs, of which the first one has two queue pairs, and the second one is stopped.
    fn view() -> View {
        let qp = |qpn: u32| {
            json!({
                "qpn": qpn, "service": "RC", "state": "RTS", "peer": {"address": "10.0.0.2", "qpn": 99}, "next_psn": 5,
                "unacked_psn": 4, "expected_psn": 3, "posted_sends": 1, "unsent": 0, "outstanding": 1,
                "outstanding_bytes": 4096, "posted_receives": 0, "shared_receives": false, "is_receiving": false,
                "has_incomplete_receive": false, "is_in_rnr_wait": false, "retries_left": 5, "retry_cnt": 7,
                "rnr_retries_left": 7, "rnr_retry": 7, "ack_timeout": 67_000_000, "rate_limit": null, "last_sent": 1,
                "last_received": 3_000_000_000u64, "last_progress": null, "failure": null, "events": ["an event"],
                "counters": {"retransmitted_pkts": 2},
            })
        };
        let state = json!({
            "pid": 7, "command": "program\u{1b}[31m", "device": "urxe0", "link": "udp 10.0.0.1", "addresses": ["10.0.0.1"],
            "is_up": true, "lost_link": null, "speed": 0, "clock": 0, "is_complete": true, "counters": {}, "faults": [],
            "qps": [qp(17), qp(18)],
        });
        let state = serde_json::from_value(state).unwrap();
        View::of(
            vec![FoundNic::new(7, Ok(state)), FoundNic::new(8, Err(Silence::Stopped))],
            None,
            &View::default(),
        )
    }

    /// Draws the screen and returns its text.
    fn draw(screen: &mut Screen) -> String {
        let mut terminal = Terminal::new(TestBackend::new(120, 24)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> bool {
        screen.on_key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn keys_select_a_queue_pair_and_show_its_details() {
        let mut screen = Screen { view: view(), ..Screen::default() };
        let list = draw(&mut screen);
        for text in [
            "2 NICs, 2 QPs",
            "process 7  program?[31m  urxe0",
            "0x000011",
            "0x000012",
            "process 8  the process is stopped",
        ] {
            assert!(list.contains(text), "{text}\n{list}");
        }
        assert!(list.contains("QP 0x000011: the peer has been silent for 3.0 s, retry 2 of 7"), "{list}");
        assert!(press(&mut screen, KeyCode::Down) && press(&mut screen, KeyCode::Down));
        assert!(draw(&mut screen).contains("QP 0x000012: the peer"));
        press(&mut screen, KeyCode::Enter);
        let details = draw(&mut screen);
        for text in
            ["QP 0x000012  RC  RTS", "peer: QP 0x000063 at 10.0.0.2", "retransmitted_pkts 2", "an event"]
        {
            assert!(details.contains(text), "{text}\n{details}");
        }
        press(&mut screen, KeyCode::Esc);
        press(&mut screen, KeyCode::Char('p'));
        let list = draw(&mut screen);
        assert!(list.contains("paused") && list.contains("0x000011"), "{list}");
        // The selected queue pair is destroyed.
        screen.view = View::default();
        assert!(draw(&mut screen).contains("no process of this user has a NIC"));
        assert!(!press(&mut screen, KeyCode::Char('q')));
    }
}
