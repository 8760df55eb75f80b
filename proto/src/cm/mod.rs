//! Communication management (chapter 12): how two programs agree on a connection, and on its end.

pub mod wire;
