//! The receiver that a remote shell starts: `treecast copy-receiver`, and all that
//! `treecast-receiver` does.

use std::io::{self, BufReader, Write};

use anyhow::Context;
use clap::Args;
use treecast_copy::{HELLO, Stopper};

#[derive(Debug, Args)]
pub struct ReceiverArguments {
    /// Print the version of what a receiver speaks, and exit
    #[arg(long)]
    pub hello: bool,
}

/// The exit status if not everything is on this host, or on all hosts, which has been reported.
pub const INCOMPLETE: u8 = 5;

/// Receives a copy, by the requests on standard input.
pub fn receive(arguments: &ReceiverArguments) -> anyhow::Result<u8> {
    if arguments.hello {
        io::stdout().write_all(format!("{HELLO}\n").as_bytes())?;
        return Ok(0);
    }
    let stopper = Stopper::default();
    let of_signals = stopper.clone();
    ctrlc::set_handler(move || of_signals.stop()).context("cannot install signal handlers")?;
    let is_complete = treecast_copy::receive(BufReader::new(io::stdin()), io::stdout(), &stopper)?;
    Ok(if is_complete { 0 } else { INCOMPLETE })
}
