//! The `hectare` command.
fn main() {}
