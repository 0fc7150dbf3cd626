//! Every job of the project.
fn main() {}
