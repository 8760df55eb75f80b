//! Commands whose output is passed on and parsed.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

use crate::cargo_log::CargoLog;
use crate::test_log::TestLog;

/// Runs a command and passes its output on, line by line, which `log` also parses.
pub(crate) fn run(command: &mut Command, log: &mut TestLog) -> io::Result<ExitStatus> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let mut cargo_log = CargoLog::default();
    thread::scope(|scope| {
        let errors =
            scope.spawn(|| pass_on(stderr, io::stderr(), |line| cargo_log.read_line(line)));
        let output = pass_on(stdout, io::stdout(), |line| log.read_line(line));
        let errors = errors.join().unwrap_or(Ok(()));
        output.and(errors)
    })?;
    log.end();
    log.complaints.extend(cargo_log.complaints());
    child.wait()
}

/// Copies lines from one stream to another, and passes each to `read`.
fn pass_on(
    from: Option<impl Read>,
    mut to: impl Write,
    mut read: impl FnMut(&str),
) -> io::Result<()> {
    let Some(from) = from else {
        return Ok(());
    };
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        read(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(())
}
