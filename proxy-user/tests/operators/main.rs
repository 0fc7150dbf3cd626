//! The daemon as operators meet it: HTTP, the control socket and the command line, against a daemon that is a fake,
//! and the real one in front of a cluster that isn't there.

mod cli;
mod daemon;
mod fake;
mod http;
