//! The daemon as operators meet it: HTTP, the control socket and the command line, against a daemon that is a fake.

mod cli;
mod fake;
mod http;
