//! `draftproof devices`: what this build contains and what this machine offers.

use std::io::{self, Write};

use anyhow::Result;
use draftproof_model::device::{self, DeviceFacts};
use serde_json::{Value, json};

use crate::args::DevicesArguments;

pub(crate) fn run(arguments: &DevicesArguments) -> Result<()> {
    let offered = device::offered();
    let mut out = io::stdout().lock();
    if arguments.json {
        let devices: Vec<Value> = offered
            .iter()
            .map(|device| match device {
                Ok(facts) => facts_json(facts),
                Err(error) => json!({ "error": error.to_string() }),
            })
            .collect();
        let all = json!({
            "built": device::available(),
            "not_built": device::missing(),
            "devices": devices,
        });
        return Ok(writeln!(out, "{all}")?);
    }
    writeln!(out, "this build contains {}", device::available().join(", "))?;
    let missing = device::missing();
    if !missing.is_empty() {
        writeln!(out, "it lacks {}; build with --features NAME", missing.join(", "))?;
    }
    for device in offered {
        writeln!(out)?;
        match device {
            Ok(facts) => print(&mut out, &facts)?,
            Err(error) => writeln!(out, "{error}")?,
        }
    }
    Ok(())
}

fn print(out: &mut impl Write, facts: &DeviceFacts) -> io::Result<()> {
    let size = |bytes: Option<u64>, otherwise: &str| match bytes {
        Some(bytes) => format!("{:.1} GiB", bytes as f64 / (1_u64 << 30) as f64),
        None => otherwise.into(),
    };
    writeln!(out, "{}  {}", facts.name, facts.adapter)?;
    writeln!(out, "  runs through    {}", facts.driver)?;
    writeln!(out, "  memory          {}", size(facts.memory, "not told"))?;
    writeln!(out, "  largest tensor  {}", size(facts.largest_tensor, "no limit"))?;
    writeln!(out, "  row-invariant   {}", if facts.row_invariant { "yes" } else { "no" })?;
    let checked = if facts.checked { "solved like on the CPU" } else { "not needed" };
    writeln!(out, "  small problems  {checked}")
}

fn facts_json(facts: &DeviceFacts) -> Value {
    json!({
        "name": facts.name,
        "adapter": facts.adapter,
        "driver": facts.driver,
        "memory_bytes": facts.memory,
        "largest_tensor_bytes": facts.largest_tensor,
        "row_invariant": facts.row_invariant,
        "checked": facts.checked,
    })
}
