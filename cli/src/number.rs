//! Numbers on the command line, with errors that name the permitted range.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Returns a parser for the numbers of a range.
pub fn within<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| {
            format!(
                "expected a whole number from {} to {}",
                range.start(),
                range.end()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_range() {
        let parse = within(1_u32..=512);
        assert_eq!(parse("512"), Ok(512));
        for text in ["0", "513", "-1", "1.5", "many", ""] {
            let error = parse(text).expect_err(text);
            assert_eq!(error, "expected a whole number from 1 to 512", "{text}");
        }
    }
}
