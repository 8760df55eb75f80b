//! `urxe top`: the queue pairs of this user's urxe processes with their rates, live.

mod rates;
mod screen;

use std::env;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyEventKind};
use ratatui::DefaultTerminal;
use serde_json::json;
use urxe_driver::stat::{self, Survey};

use crate::devices::align;
use crate::number;
use crate::stat::explain_silent;
use rates::{Column, Row, rows, select};
use screen::{Request, Screen};

/// The time to wait for a process's answer. A stopped process delays the screen by this much.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
/// The time within which a new survey is drawn; keys are handled at once.
const DRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Show queue pairs with their peers, rates and retransmissions, live
#[derive(clap::Args)]
#[command(
    after_help = "Shows the processes of this user in this network namespace. WINDOW is the \
                  congestion window in packets, RTT the smoothed round-trip time. Keys: q quits, \
                  left and right select the column to sort by, r reverses the order, / edits the \
                  filter, space pauses, up and down scroll.\n\n\
                  Without a terminal, or with --count or --json, it prints tables.\n\n\
                  Exit status: 0; 1 if the processes cannot be queried."
)]
pub struct Arguments {
    /// Seconds between two updates
    #[arg(long, short, default_value = "1", value_parser = seconds, allow_negative_numbers = true)]
    interval: Duration,
    /// Column to sort by
    #[arg(long, short, default_value = "sent")]
    sort: Column,
    /// Show only rows with TEXT in program, process ID, device, queue pair or peer
    #[arg(
        long,
        short,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    filter: String,
    /// Print this many tables and exit
    #[arg(long, short, value_parser = number::within(1..=u64::MAX))]
    count: Option<u64>,
    /// Print one line of JSON per update
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "expected a number of seconds above 0, such as 0.5".to_owned())
}

/// Shows the queue pairs until the user quits.
pub fn top(arguments: &Arguments) -> ExitCode {
    let batch = arguments.count.is_some() || arguments.json || !io::stdout().is_terminal();
    let shown = match batch {
        true => print_tables(arguments),
        false => {
            let mut terminal = ratatui::init();
            let shown = show(&mut terminal, arguments);
            ratatui::restore();
            shown
        }
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "urxe top: cannot query the processes: {error}; the query needs Unix sockets, \
                 `urxe doctor` checks them"
            );
            ExitCode::FAILURE
        }
    }
}

/// A survey with its time.
struct Surveyed {
    survey: Survey,
    at: Instant,
}

impl Surveyed {
    fn now() -> io::Result<Self> {
        let survey = stat::survey(RESPONSE_TIMEOUT)?;
        let at = Instant::now();
        Ok(Self { survey, at })
    }

    fn rows_since(&self, before: &Self) -> Vec<Row> {
        rows(&before.survey, &self.survey, self.at - before.at)
    }

    fn omitted(&self) -> u64 {
        let processes = self.survey.processes.iter();
        processes
            .map(|process| process.report.queue_pairs_omitted)
            .sum()
    }
}

/// Prints a table for each interval.
fn print_tables(arguments: &Arguments) -> io::Result<()> {
    let mut before = Surveyed::now()?;
    let mut printed = 0;
    while arguments.count.is_none_or(|count| printed < count) {
        thread::sleep(arguments.interval);
        let now = Surveyed::now()?;
        let rows = select(
            now.rows_since(&before),
            &arguments.filter,
            arguments.sort,
            false,
        );
        let text = match arguments.json {
            true => json_line(&rows, &now),
            false => table(&rows, &now),
        };
        if io::stdout().write_all(text.as_bytes()).is_err() {
            // The reader closed the pipe, which is no error.
            return Ok(());
        }
        before = now;
        printed += 1;
    }
    Ok(())
}

fn table(rows: &[Row], now: &Surveyed) -> String {
    let headings = Column::ALL.map(|column| column.heading().to_owned());
    let cells = rows.iter().map(|row| row.cells().to_vec());
    let all: Vec<_> = std::iter::once(headings.to_vec()).chain(cells).collect();
    let mut text: String = align(&all).into_iter().map(|line| line + "\n").collect();
    if now.survey.silent > 0 {
        text += &format!("{}\n", explain_silent(now.survey.silent));
    }
    text + "\n"
}

fn json_line(rows: &[Row], now: &Surveyed) -> String {
    let line = json!({
        "processes": now.survey.processes.len(),
        "silent": now.survey.silent,
        "omitted": now.omitted(),
        "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
    });
    format!("{line}\n")
}

/// Draws the screen until the user quits.
fn show(terminal: &mut DefaultTerminal, arguments: &Arguments) -> io::Result<()> {
    let mut screen = Screen::new(arguments.sort, arguments.filter.clone());
    screen.coloured = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let surveys = survey_regularly(arguments.interval);
    let mut before: Option<Surveyed> = None;
    loop {
        while let Ok(now) = surveys.try_recv() {
            let now = now?;
            if !screen.paused {
                screen.processes = now.survey.processes.len();
                screen.silent = now.survey.silent;
                screen.omitted = now.omitted();
                if let Some(before) = &before {
                    screen.rows = now.rows_since(before);
                }
                before = Some(now);
            }
        }
        terminal.draw(|frame| screen.draw(frame))?;
        if event::poll(DRAW_INTERVAL)?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
            && screen.handle_key(key) == Request::Quit
        {
            return Ok(());
        }
    }
}

/// Surveys the processes in a thread, which ends with the receiver.
fn survey_regularly(interval: Duration) -> Receiver<io::Result<Surveyed>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        while sender.send(Surveyed::now()).is_ok() {
            thread::sleep(interval);
        }
    });
    receiver
}
