//! draftproof: speculative decoding whose text follows exactly the law of the target's sampler.
//!
//! Exit codes: 0 all went well (a closed pipe included), 1 a check did not pass, 2 usage, input or I/O.

/// As the standard library's, but a message that nobody can read (standard error is closed) is lost
/// rather than the end of the program: `2>&1 | head` closes it.
macro_rules! eprintln {
    ($($message:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($message)*);
    }};
}

mod args;
mod bench;
mod calibrate;
mod chat;
mod contract;
mod detect;
mod devices;
mod engine;
mod evaluate;
mod generate;
mod http;
mod hub;
mod logprobs;
mod measure;
mod noise;
mod output;
mod pair;
mod replay;
mod report;
mod reproducibility;
mod settings;
mod stops;
mod verify;
mod watermark;
#[cfg(feature = "remote")]
mod worker;

use std::{io, process::ExitCode};

use clap::Parser;

use args::{Arguments, Command, WatermarkCommand};

fn main() -> ExitCode {
    let passed = match Arguments::parse().command {
        Command::Generate(arguments) => generate::run(&arguments).map(|()| true),
        Command::Contract(arguments) => contract::run(&arguments).map(|()| true),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments).map(|()| true),
        Command::Evaluate(arguments) => evaluate::run(&arguments).map(|()| true),
        Command::Pair(arguments) => pair::run(&arguments),
        Command::Noise(arguments) => noise::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Watermark(WatermarkCommand::Keygen(arguments)) => {
            watermark::keygen(&arguments).map(|()| true)
        }
        Command::Watermark(WatermarkCommand::Calibrate(arguments)) => {
            calibrate::run(&arguments).map(|()| true)
        }
        Command::Detect(arguments) => detect::run(&arguments).map(|()| true),
        Command::Audit(arguments) => verify::audit(&arguments),
        Command::Devices(arguments) => devices::run(&arguments).map(|()| true),
        #[cfg(feature = "remote")]
        Command::Worker(arguments) => worker::run(&arguments).map(|()| true),
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        // Whoever read our output has seen enough.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("draftproof: {}", message(&error));
            ExitCode::from(2)
        }
    }
}

/// The error and its causes, less those that the message before them quotes.
fn message(error: &anyhow::Error) -> String {
    let mut message = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !message.ends_with(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    message
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}
