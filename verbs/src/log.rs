//! Messages on standard error, each with the prefix `urxe: `.
//!
//! A C program installs no `tracing` subscriber, so its first call of the library installs this
//! one. Without `URXE_LOG` it prints warnings and errors, each text once per process. A program
//! that probes for limits, or repeats a failing call, thus causes one line. With `URXE_LOG` it
//! prints every message that the variable selects.

mod once;

use std::fmt;
use std::io::{self, IsTerminal as _};
use std::sync::Once;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, SubscriberBuilder};
use tracing_subscriber::registry::LookupSpan;

use once::Printed;

const VARIABLE: &str = "URXE_LOG";

/// Installs the subscriber. Does nothing on a second call, or if a Rust program has installed a
/// subscriber.
pub fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let value = std::env::var(VARIABLE).ok();
        let (filter, wrong) = filter(value.as_deref());
        let subscriber = SubscriberBuilder::default()
            .with_env_filter(filter)
            .with_writer(|| StandardError)
            .with_ansi(io::stderr().is_terminal())
            .event_format(Line {
                printed: value.is_none().then_some(&PRINTED),
            })
            .finish();
        if tracing::subscriber::set_global_default(subscriber).is_ok()
            && let Some(error) = wrong
        {
            tracing::warn!(
                "{VARIABLE} is not understood ({error}): set it to error, warn, info, debug or \
                 trace, or to pairs like urxe_driver=debug"
            );
        }
    });
}

/// Standard error, written by the system call itself.
///
/// `std::io::Stderr` has a lock. A forked child finds it locked for ever if another thread of its
/// parent was writing. The C library's write(2) is a cancellation point.
struct StandardError;

impl io::Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: pointer and length are those of a live slice, which the kernel only reads.
        let written = unsafe {
            libc::syscall(
                libc::SYS_write,
                libc::STDERR_FILENO,
                bytes.as_ptr(),
                bytes.len(),
            )
        };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the filter for a value of the variable, or the default filter and an error text.
fn filter(value: Option<&str>) -> (EnvFilter, Option<String>) {
    let builder = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into());
    let value = value.unwrap_or_default();
    if let Some(word) = unknown_word(value) {
        return (
            EnvFilter::new("warn"),
            Some(format!("«{word}» is no level")),
        );
    }
    match builder.parse(value) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new("warn"), Some(error.to_string())),
    }
}

/// Returns the first bare word that is neither a level nor a target of urxe. As a filter it would
/// name a target that does not exist, and select nothing; most likely it is a misspelt level.
fn unknown_word(value: &str) -> Option<&str> {
    let words = value.split(',').map(str::trim);
    words
        .filter(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric()))
        .find(|word| word.parse::<LevelFilter>().is_err() && !word.starts_with("urxe"))
}

/// The messages that this process has printed without `URXE_LOG`.
static PRINTED: Printed = Printed::new();

/// Formats an event as `urxe: message`. Events below the level of a warning have their level and
/// target too.
struct Line {
    /// The messages that are not printed again, if repetitions are suppressed.
    printed: Option<&'static Printed>,
}

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        if self.printed.is_some_and(|printed| !printed.insert(&text)) {
            return Ok(());
        }
        write!(writer, "urxe: ")?;
        if *metadata.level() > Level::WARN {
            write!(writer, "{} {}: ", metadata.level(), metadata.target())?;
        }
        writeln!(writer, "{text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_the_default_level() {
        assert_eq!(filter(None).0.max_level_hint(), Some(LevelFilter::WARN));
        let debug = filter(Some("urxe_driver=debug")).0;
        assert_eq!(debug.max_level_hint(), Some(LevelFilter::DEBUG));
        assert_eq!(
            filter(Some("off")).0.max_level_hint(),
            Some(LevelFilter::OFF)
        );
    }

    #[test]
    fn an_invalid_filter_is_reported() {
        for value in ["urxe=loud", "debgu", "info,loud"] {
            let (filter, wrong) = filter(Some(value));
            assert!(wrong.is_some(), "{value}");
            assert_eq!(filter.max_level_hint(), Some(LevelFilter::WARN));
        }
        for value in ["debug", "OFF", "urxe_driver", "info,urxe_proto=trace", ""] {
            assert_eq!(filter(Some(value)).1, None, "{value}");
        }
    }
}
