//! A client that knows no mercy: frames built by hand, cut anywhere, answered or not.
//!
//! [`Client`] is asynchronous and gives full control; [`blocking::Connection`] serves ready checks and simple calls.

pub mod batch;
pub mod blocking;
mod client;
mod frame;

pub use batch::Batch;
pub use client::Client;
pub use frame::{
    AnswerFrame, RequestFrame, answer, decode_answer, decode_request, frame, request, request_with_header,
};
