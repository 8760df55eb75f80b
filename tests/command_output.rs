//! Snapshots of what the `urxe` command prints: help texts and errors.
//!
//! After an intended change, `TRYCMD=overwrite cargo test -p urxe-tests --test command_output`
//! writes the files in `tests/command_output/` anew.

/// Each file is a list of commands with their output and exit status.
#[test]
fn output_is_as_recorded() {
    trycmd::TestCases::new()
        .register_bin("urxe", urxe_tests::built("urxe"))
        .env("COLUMNS", "100")
        .env("URXE_LOG", "")
        .case("command_output/*.trycmd");
}
