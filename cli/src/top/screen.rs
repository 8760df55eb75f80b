//! The screen of `urxe top`: its state, its keys, and how it is drawn.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout};
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
    /// Whether colours mark the selected column and rows with retransmissions. Must be unset if the
    /// variable NO_COLOR is set: crossterm then writes a reset of all attributes for each colour.
    pub coloured: bool,
    /// The number of rows above the first one on the screen.
    pub scrolled: usize,
    /// Columns for which the terminal is too narrow.
    pub hidden: usize,
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

const EMPTY: &str = "\n No urxe process of this user has a queue pair in this network namespace.";

/// The columns that a narrow terminal does not show, the first one first.
const OPTIONAL: [Column; 8] = [
    Column::Packets,
    Column::Window,
    Column::RoundTrip,
    Column::Pid,
    Column::Program,
    Column::Retransmitted,
    Column::Received,
    Column::Sent,
];

const HELP: &str = " q quit  ←→ sort  r reverse  / filter  space pause  ↑↓ scroll";

impl Screen {
    pub fn new(column: Column, filter: String) -> Self {
        Self {
            column,
            reverse: false,
            filter,
            editing: false,
            paused: false,
            coloured: true,
            scrolled: 0,
            hidden: 0,
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
        frame.render_widget(Paragraph::new(self.summary(top.width.into())), top);
        let rows = select(self.rows.clone(), &self.filter, self.column, self.reverse);
        self.scrolled = self.scrolled.min(rows.len().saturating_sub(1));
        match self.rows.is_empty() {
            true => frame.render_widget(Paragraph::new(EMPTY), middle),
            false => {
                let table = self.table(&rows, middle.width.into());
                frame.render_widget(table, middle);
            }
        }
        frame.render_widget(Paragraph::new(self.footer()), bottom);
    }

    /// Returns the totals, without the last ones where they do not fit.
    fn summary(&self, width: usize) -> Line<'static> {
        let rate = |of: fn(&Row) -> f64| self.rows.iter().map(of).sum::<f64>() / 1e6;
        let retransmitted: f64 = self.rows.iter().map(|row| row.retransmitted).sum();
        let mut parts = vec![
            format!(
                "{}, {}",
                counted(self.processes as u64, "process", "processes"),
                counted(
                    self.rows.len() as u64 + self.omitted,
                    "queue pair",
                    "queue pairs"
                ),
            ),
            format!("sent {:.1} MB/s", rate(|row| row.sent)),
            format!("received {:.1} MB/s", rate(|row| row.received)),
            format!("retransmitted {retransmitted:.0}/s"),
        ];
        // Before the totals, which the table shows as well.
        if self.omitted > 0 {
            parts.insert(1, format!("{} idle omitted", self.omitted));
        }
        if self.silent > 0 {
            parts.insert(1, format!("without response: {}", self.silent));
        }
        let mut text = String::new();
        for part in parts {
            let separator = if text.is_empty() { " " } else { "  " };
            if text.chars().count() + separator.len() + part.len() > width {
                break;
            }
            text = text + separator + &part;
        }
        Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
    }

    fn table(&mut self, rows: &[Row], width: usize) -> Table<'static> {
        let mark = if self.reverse { " ▲" } else { " ▼" };
        let headings = Column::ALL.map(|column| {
            let mark = if column == self.column { mark } else { "" };
            format!("{}{mark}", column.heading())
        });
        // The rows above the screen count as well, so that scrolling does not move the columns.
        let cells: Vec<_> = rows.iter().map(Row::cells).collect();
        let columns = fit(&headings, &cells, self.column, width);
        self.hidden = Column::ALL.len() - columns.len();

        let colour = |style: Style, colour| match self.coloured {
            true => style.fg(colour),
            false => style,
        };
        let header = columns.iter().map(|&(at, _)| {
            let column = Column::ALL[at];
            let modifier = Modifier::REVERSED;
            let style = match column == self.column {
                // Bold distinguishes it without colours.
                true => colour(
                    Style::new().add_modifier(modifier | Modifier::BOLD),
                    Color::Green,
                ),
                false => Style::new().add_modifier(modifier),
            };
            cell(at, headings[at].clone()).style(style)
        });
        let shown = rows.iter().zip(&cells).skip(self.scrolled);
        let shown = shown.map(|(row, cells)| {
            let style = match row.retransmitted > 0.0 {
                true => colour(Style::new(), Color::Yellow),
                false => Style::new(),
            };
            let cells = columns.iter().map(|&(at, _)| cell(at, cells[at].clone()));
            TableRow::new(cells).style(style)
        });
        let widths = columns.iter().map(|&(_, width)| width as u16);
        Table::new(shown.collect::<Vec<_>>(), widths.map(Constraint::Length))
            .header(TableRow::new(header.collect::<Vec<_>>()))
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
        if self.hidden > 0 && !self.rows.is_empty() {
            text += &format!(
                "   {}",
                counted(self.hidden as u64, "column hidden", "columns hidden")
            );
        }
        Line::raw(text)
    }
}

/// Returns a count with the noun in its number.
fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Returns a cell of the column with this index.
fn cell(at: usize, text: String) -> Cell<'static> {
    let alignment = match Column::ALL[at].is_amount() {
        true => Alignment::Right,
        false => Alignment::Left,
    };
    Cell::from(Line::from(text).alignment(alignment))
}

/// Returns the columns that fit, by index, with their widths. Between two columns is a space. The
/// queue pair, its peer and the selected column are always among them; the peer is cut off if they
/// are too wide.
fn fit(
    headings: &[String; 10],
    cells: &[[String; 10]],
    selected: Column,
    available: usize,
) -> Vec<(usize, usize)> {
    let width = |text: &String| text.chars().count();
    let mut columns: Vec<(usize, usize)> = (0..headings.len())
        .map(|at| {
            let least = width(&headings[at]).max(Column::ALL[at].min_width());
            let widest = cells.iter().map(|row| width(&row[at])).max().unwrap_or(0);
            (at, widest.max(least))
        })
        .collect();
    let total = |columns: &[(usize, usize)]| {
        columns
            .iter()
            .map(|(_, width)| width + 1)
            .sum::<usize>()
            .saturating_sub(1)
    };
    for optional in OPTIONAL {
        if total(&columns) <= available {
            break;
        }
        columns.retain(|&(at, _)| Column::ALL[at] != optional || optional == selected);
    }
    let excess = total(&columns).saturating_sub(available);
    for (at, width) in &mut columns {
        if Column::ALL[*at] == Column::Peer {
            *width = width.saturating_sub(excess).max(1);
        }
    }
    columns
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
        lines_of(screen, 140)
    }

    fn lines_of(screen: &mut Screen, width: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, 8)).expect("a buffer");
        terminal.draw(|frame| screen.draw(frame)).expect("a buffer");
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect();
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
            shown[0].contains("1 process, 3 queue pairs  sent 6.0 MB/s"),
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
    fn narrow_terminal_shows_whole_cells_and_the_selected_column() {
        let mut screen = screen();
        for (width, selected) in [
            (80, Column::Sent),
            (60, Column::Packets),
            (40, Column::Sent),
        ] {
            screen.column = selected;
            let shown = lines_of(&mut screen, width);
            let heading = format!("{} ▼", selected.heading());
            assert!(shown[1].contains(&heading), "{shown:?}");
            let fastest = screen.rows.iter().find(|row| row.qp.qpn == 0x12);
            let cells = fastest.expect("a row").cells();
            let [qp, peer] = [2, 3].map(|at| cells[at].as_str());
            let row = shown.iter().find(|line| line.contains(qp));
            let row = row.unwrap_or_else(|| panic!("{shown:?}"));
            // The peer is the only cell that may be cut off.
            assert!(width < 60 || row.contains(peer), "{shown:?}");
            let at = Column::ALL.iter().position(|&column| column == selected);
            assert!(row.contains(&cells[at.expect("a column")]), "{shown:?}");
            assert!(screen.hidden > 0);
        }
        let shown = lines_of(&mut screen, 140);
        assert!(
            screen.hidden == 0 && !shown[7].contains("hidden"),
            "{shown:?}"
        );
    }

    #[test]
    fn without_colours_the_selected_column_is_bold() {
        let mut screen = screen();
        for row in &mut screen.rows {
            row.retransmitted = 1.0;
        }
        screen.coloured = false;
        let mut terminal = Terminal::new(TestBackend::new(140, 8)).expect("a buffer");
        terminal.draw(|frame| screen.draw(frame)).expect("a buffer");
        let buffer = terminal.backend().buffer();
        let cells = buffer.content.iter();
        assert!(
            cells
                .clone()
                .all(|cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset))
        );
        let both = Modifier::REVERSED | Modifier::BOLD;
        let marked = cells
            .filter(|cell| cell.modifier.contains(both))
            .map(|cell| cell.symbol());
        assert_eq!(marked.collect::<String>().trim(), "SENT/s ▼");
    }

    #[test]
    fn screen_without_queue_pairs_says_so() {
        let mut screen = Screen::new(Column::Sent, String::new());
        assert!(lines(&mut screen)[2].contains("No urxe process of this user"));
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
