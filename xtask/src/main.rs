//! Developer commands of urxe.
fn main() {}
