//! `draftproof worker`: models for programs on other machines.

use std::{io::Write, net::TcpListener};

use anyhow::{Context, Result, ensure};
use draftproof_model::{
    Model, REMOTE, Role,
    device::{self, DeviceFacts},
    remote::{Served, serve},
};

use crate::{
    args::WorkerArguments,
    settings::{self, WORKER_TOKEN},
};

pub(crate) fn run(arguments: &WorkerArguments) -> Result<()> {
    let token = settings::worker_token();
    let listener =
        TcpListener::bind(arguments.bind).with_context(|| format!("--bind {}", arguments.bind))?;
    let address = listener.local_addr()?;
    ensure!(
        token.is_some() || address.ip().is_loopback(),
        "--bind {address}: whoever reaches this address could use the models; set {WORKER_TOKEN} \
         here and for the clients"
    );
    ensure!(
        !arguments.device.starts_with(REMOTE),
        "--device {}: a worker computes on devices of its own machine",
        arguments.device
    );
    settings::prepare_machine(arguments.threads, arguments.kernels)?;
    let facts = device::facts(&arguments.device)?;
    let mut models: Vec<Served> = Vec::new();
    let named = arguments.model.iter().map(|name| (name, Role::Target));
    let named = named.chain(arguments.draft_model.iter().map(|name| (name, Role::Draft)));
    for (name, role) in named {
        let model = settings::open(name, role, &arguments.device)?;
        let served = serve_as(name, model, &facts);
        if let Some(other) = models.iter().find(|other| other.like(&served)) {
            anyhow::bail!(
                "{name} has the configuration and the tokenizer of {}: clients could not tell which \
                 of the two they mean; serve one of them",
                other.name()
            );
        }
        models.push(served);
    }
    let mut out = std::io::stdout();
    writeln!(out, "ws://{address}")?;
    out.flush()?;
    for served in &models {
        eprintln!("draftproof: {} on {} at ws://{address}", served.name(), facts.adapter);
    }
    if !address.ip().is_loopback() {
        eprintln!("draftproof: warning: connections are not encrypted");
    }
    serve(&listener, models, token.as_deref(), |line| eprintln!("draftproof: {line}"))?;
    Ok(())
}

fn serve_as(name: &str, model: Model, facts: &DeviceFacts) -> Served {
    let device = format!("{} ({})", facts.name, facts.adapter);
    Served::new(name.into(), model, device, facts.row_invariant)
}
