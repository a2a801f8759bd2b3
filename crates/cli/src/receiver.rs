//! `treecast-receiver`: only the receiver of `treecast cp`, as a small static program that hosts
//! without `treecast` are sent.

// It has no unit tests, and need not be compiled again for none.
#![cfg(not(test))]

#[path = "command/cp/receiver.rs"]
mod receiver;

use std::process::ExitCode;

use crate::receiver::{ReceiverArguments, receive};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let hello = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["copy-receiver"] => false,
        ["copy-receiver", "--hello"] => true,
        _ => {
            eprintln!("treecast-receiver: treecast cp starts this program on other hosts");
            return ExitCode::from(2);
        }
    };
    match receive(&ReceiverArguments { hello }) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("treecast-receiver: {error:#}");
            ExitCode::FAILURE
        }
    }
}
