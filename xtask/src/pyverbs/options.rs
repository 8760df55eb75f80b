//! The options of the command.

/// The name of the tests in a summary.
pub(super) const NAME: &str = "pyverbs";

/// The options of the command.
#[derive(clap::Args, Default)]
pub(crate) struct PyverbsOptions {
    /// Run only tests whose full name contains PATTERN, or matches it where it has `*`; may be
    /// repeated
    #[arg(short = 'k', value_name = "PATTERN")]
    pub(super) pattern: Vec<String>,

    /// Build urxe without optimization, which is faster
    #[arg(long)]
    pub(super) dev: bool,

    /// Value of `--sysfs` for `urxe run`
    #[arg(long, value_name = "WHEN")]
    pub(super) sysfs: Option<String>,

    /// Run the suite of the installed rdma-core only, and not that of Debian's newest release,
    /// which needs root and debootstrap
    #[arg(long)]
    pub(super) installed: bool,

    /// Show the output of the tests and of urxe instead of writing it to a file
    #[arg(long)]
    pub(super) show_output: bool,
}
