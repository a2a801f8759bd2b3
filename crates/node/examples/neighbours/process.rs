//! The processes of a measurement, which read orders from standard input, and write answers to
//! standard output: JSON, one value per line. A process ends when its input does, so that none
//! survives the one that has started it.

use std::io::{self, BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A process that this one has started. It is killed when it is dropped.
pub struct Process {
    child: Child,
    /// The name of the process in errors.
    name: String,
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts this program again, with these arguments, as a user.
    pub fn start(role: &[&str], user: Option<u32>) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(role).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let mut child = command.spawn().with_context(|| format!("cannot start {role:?}"))?;
        let orders = child.stdin.take();
        let answers = child.stdout.take().context("it has no output")?;
        let name = role[0].to_owned();
        Ok(Self { child, name, orders, answers: BufReader::new(answers).lines() })
    }

    /// The next answer. A process that has failed has written the reason to standard error.
    pub fn answer<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let Some(line) = self.answers.next().transpose()? else {
            self.orders = None;
            bail!("the {} has ended early, with {}", self.name, self.child.wait()?);
        };
        Ok(serde_json::from_str(&line)?)
    }

    pub fn ask<T: DeserializeOwned>(&mut self, order: &impl Serialize) -> anyhow::Result<T> {
        let orders = self.orders.as_mut().context("its input is closed")?;
        writeln!(orders, "{}", serde_json::to_string(order)?)?;
        self.answer()
    }

    /// Ends the process, and returns its last answer.
    pub fn finish<T: DeserializeOwned>(mut self) -> anyhow::Result<T> {
        self.orders = None;
        let last = self.answer()?;
        self.end()?;
        Ok(last)
    }

    pub fn end(mut self) -> anyhow::Result<()> {
        self.orders = None;
        let status = self.child.wait()?;
        ensure!(status.success(), "the {} has ended with {status}", self.name);
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answers the process that has started this one.
pub fn say(answer: &impl Serialize) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{}", serde_json::to_string(answer)?)?;
    Ok(output.flush()?)
}

/// Waits until the process that has started this one ends it.
pub fn wait_for_end() {
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
}
