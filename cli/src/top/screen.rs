//! The screen of `urxe top`: its state, its keys, and how it is drawn.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};

use super::rates::{Column, Row, select};

/// What the user selected, and what is shown.
#[derive(Debug)]
pub struct Screen {
    pub column: Column,
    pub reverse: bool,
    pub filter: String,
    /// Whether keys edit the filter.
    pub editing: bool,
    pub paused: bool,
    /// The number of rows above the first one on the screen.
    pub scrolled: usize,
    /// All queue pairs of the last survey.
    pub rows: Vec<Row>,
    pub processes: usize,
    /// Processes that did not answer.
    pub silent: usize,
    /// Queue pairs that processes did not report.
    pub omitted: u64,
}

/// What a key asks for beyond the screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    Nothing,
    Quit,
}

const HELP: &str = " q quit  ←→ sort  r reverse  / filter  space pause  ↑↓ scroll";

impl Screen {
    pub fn new(column: Column, filter: String) -> Self {
        Self {
            column,
            reverse: false,
            filter,
            editing: false,
            paused: false,
            scrolled: 0,
            rows: Vec::new(),
            processes: 0,
            silent: 0,
            omitted: 0,
        }
    }

    pub fn handle_key(&mut self, key: KeyEvent) -> Request {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Request::Quit;
        }
        if self.editing {
            self.edit(key.code);
            return Request::Nothing;
        }
        match key.code {
            KeyCode::Char('q') => return Request::Quit,
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Char('/') => self.editing = true,
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Right => self.column = self.column.next(true),
            KeyCode::Left => self.column = self.column.next(false),
            KeyCode::Down => self.scrolled = self.scrolled.saturating_add(1),
            KeyCode::Up => self.scrolled = self.scrolled.saturating_sub(1),
            _ => (),
        }
        Request::Nothing
    }

    fn edit(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.editing = false,
            KeyCode::Esc => {
                self.editing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) => self.filter.push(c),
            _ => (),
        }
        self.scrolled = 0;
    }

    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let areas = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(2),
            Constraint::Length(1),
        ]);
        let [top, middle, bottom] = areas.areas(frame.area());
        frame.render_widget(Paragraph::new(self.summary()), top);
        let rows = select(self.rows.clone(), &self.filter, self.column, self.reverse);
        self.scrolled = self.scrolled.min(rows.len().saturating_sub(1));
        frame.render_widget(self.table(&rows), middle);
        frame.render_widget(Paragraph::new(self.footer()), bottom);
    }

    fn summary(&self) -> Line<'static> {
        let rate = |of: fn(&Row) -> f64| self.rows.iter().map(of).sum::<f64>() / 1e6;
        let retransmitted: f64 = self.rows.iter().map(|row| row.retransmitted).sum();
        let mut text = format!(
            " {} processes, {} queue pairs   sent {:.1} MB/s   received {:.1} MB/s   \
             retransmitted {retransmitted:.0}/s",
            self.processes,
            self.rows.len() as u64 + self.omitted,
            rate(|row| row.sent),
            rate(|row| row.received),
        );
        if self.silent > 0 {
            text += &format!("   without response: {}", self.silent);
        }
        if self.omitted > 0 {
            text += &format!("   {} idle queue pairs omitted", self.omitted);
        }
        Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
    }

    fn table(&self, rows: &[Row]) -> Table<'static> {
        let heading = |column: Column| {
            let style = match column == self.column {
                true => Style::new().fg(Color::Black).bg(Color::Green),
                false => Style::new().add_modifier(Modifier::REVERSED),
            };
            let mark = match (column == self.column, self.reverse) {
                (false, _) => "",
                (true, false) => " ▼",
                (true, true) => " ▲",
            };
            Cell::from(format!("{}{mark}", column.heading())).style(style)
        };
        let shown = rows.iter().skip(self.scrolled).map(|row| {
            let style = match row.retransmitted > 0.0 {
                true => Style::new().fg(Color::Yellow),
                false => Style::new(),
            };
            TableRow::new(row.cells().map(Cell::from)).style(style)
        });
        let widths = [8, 16, 20, 24, 11, 12, 11, 11, 8, 9].map(|width| match width {
            24 => Constraint::Min(width),
            width => Constraint::Length(width),
        });
        Table::new(shown.collect::<Vec<_>>(), widths)
            .header(TableRow::new(Column::ALL.map(heading)))
    }

    fn footer(&self) -> Line<'static> {
        if self.editing {
            return Line::from(vec![
                Span::raw(" filter: "),
                Span::styled(
                    format!("{}_", self.filter),
                    Style::new().add_modifier(Modifier::BOLD),
                ),
            ]);
        }
        let mut text = HELP.to_owned();
        if !self.filter.is_empty() {
            text += &format!("   filter: {}", self.filter);
        }
        if self.paused {
            text += "   paused";
        }
        Line::raw(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::rates::rows;
    use crate::top::rates::tests::survey;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Duration;
    use urxe_driver::stat::Survey;

    fn screen() -> Screen {
        let now = survey(&[(0x11, 1_000_000), (0x12, 5_000_000), (0x13, 0)]);
        Screen {
            rows: rows(&Survey::default(), &now, Duration::from_secs(1)),
            processes: 1,
            ..Screen::new(Column::Sent, String::new())
        }
    }

    fn lines(screen: &mut Screen) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(140, 8)).expect("a buffer");
        terminal.draw(|frame| screen.draw(frame)).expect("a buffer");
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..140).map(|x| buffer[(x, y)].symbol()).collect();
        (0..8).map(line).collect()
    }

    fn press(screen: &mut Screen, codes: &[KeyCode]) {
        for &code in codes {
            let request = screen.handle_key(KeyEvent::from(code));
            assert_eq!(request, Request::Nothing);
        }
    }

    #[test]
    fn queue_pairs_are_listed_by_the_selected_column() {
        let mut screen = screen();
        let shown = lines(&mut screen);
        assert!(
            shown[0].contains("1 processes, 3 queue pairs   sent 6.0 MB/s"),
            "{shown:?}"
        );
        assert!(shown[1].contains("SENT/s ▼"), "{shown:?}");
        for (line, qpn) in shown[2..5].iter().zip(["0x12", "0x11", "0x13"]) {
            assert!(
                line.contains(qpn) && line.contains("192.0.2.2 0x7"),
                "{shown:?}"
            );
        }
        press(&mut screen, &[KeyCode::Char('r'), KeyCode::Down]);
        let shown = lines(&mut screen);
        assert!(
            shown[1].contains("SENT/s ▲") && shown[2].contains("0x11"),
            "{shown:?}"
        );
        press(&mut screen, &[KeyCode::Left]);
        assert!(lines(&mut screen)[1].contains("PEER ▲"));
    }

    #[test]
    fn filter_is_edited_and_cleared() {
        let mut screen = screen();
        let keys = ['/', '0', 'x', '1', '3', 'q'].map(KeyCode::Char);
        press(&mut screen, &keys);
        assert!(lines(&mut screen)[7].contains("filter: 0x13q_"));
        press(&mut screen, &[KeyCode::Backspace, KeyCode::Enter]);
        let shown = lines(&mut screen);
        assert!(
            shown[2].contains("0x13") && shown[3].trim().is_empty(),
            "{shown:?}"
        );
        press(&mut screen, &[KeyCode::Esc]);
        assert!(screen.filter.is_empty());
    }

    #[test]
    fn q_and_control_c_quit() {
        let mut screen = screen();
        let quit = screen.handle_key(KeyEvent::from(KeyCode::Char('q')));
        assert_eq!(quit, Request::Quit);
        screen.editing = true;
        let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.handle_key(key), Request::Quit);
    }
}
