//! What is known after a run: figures for people on stderr, and the `stats` object of the JSON.

use std::time::Duration;

use draftproof_decode::{
    FinishReason,
    stats::{AtPosition, Meter, Part, Stats, predicted_speedup},
    verify::Origin,
};
use draftproof_model::{
    guidance::{Form, Guidance, Strength},
    machine::{self, Kernels},
};
use serde_json::{Value, json};

use crate::{args::GenerateArguments, measure::Costs, output::colour, settings::Models};

/// How the time of a run was spent, as shares of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    draft: f64,
    verify: f64,
    sampler: f64,
}

impl Share {
    pub(crate) fn new(meter: &Meter, elapsed: Duration) -> Self {
        let share = |part| meter.spent(part).as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
        Self {
            draft: share(Part::Draft),
            verify: share(Part::Verify),
            sampler: share(Part::Sampler),
        }
    }

    fn other(&self) -> f64 {
        (1.0 - self.draft - self.verify - self.sampler).max(0.0)
    }
}

/// The figures of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report<'a> {
    pub(crate) stats: &'a Stats,
    pub(crate) costs: Costs,
    pub(crate) share: Share,
    /// Tokens per second, of all continuations together.
    pub(crate) rate: f64,
    /// Whether q is the draft's law; a race proposes its winner with certainty.
    pub(crate) has_q: bool,
}

impl Report<'_> {
    fn predicted_speedup(&self) -> Option<f64> {
        let drafted = self.stats.drafted as f64 / self.stats.rounds.max(1) as f64;
        let (c, v) = (self.costs.c?, self.costs.v_verify?);
        Some(predicted_speedup(self.stats.tokens_per_round()?, drafted, c, v))
    }

    /// Σ min(p, q) says nothing where the draft's law is not part of the proposal.
    fn alpha(&self) -> Option<f64> {
        self.stats.alpha().filter(|_| self.has_q)
    }

    fn by_position(&self) -> Vec<f64> {
        let share = |at: &AtPosition| at.accepted as f64 / at.reached as f64;
        self.stats.by_position.iter().map(share).collect()
    }

    /// The keys that scripts rely on.
    pub(crate) fn to_json(self) -> Value {
        let stats = self.stats;
        json!({
            "rounds": stats.rounds,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "tokens_per_round": stats.tokens_per_round(),
            "acceptance_by_position": self.by_position(),
            "alpha": self.alpha(),
            "c": self.costs.c,
            "v_verify": self.costs.v_verify,
            "entropy_bits": stats.entropy_bits(),
            "eligible_tokens": stats.eligible_tokens(),
            "tokens_per_second": self.rate.is_finite().then_some(self.rate),
            "predicted_speedup": self.predicted_speedup(),
            "unusable_draft_rows": stats.unusable_draft_rows,
            "share": {
                "draft": self.share.draft,
                "verify": self.share.verify,
                "sampler": self.share.sampler,
                "other": self.share.other(),
            },
        })
    }
}

fn figure(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

/// What a looped target ran, and did not run.
fn print_loops(report: &Report<'_>, models: &Models) {
    let Some(loops) = models.target.loops() else { return };
    let early = models.draft.as_ref().and_then(|draft| draft.loops());
    let draft = early.map(|early| format!(", the draft after {early}")).unwrap_or_default();
    let initial = models.target.initial_state();
    let initial = initial.map(|state| format!(" · initial state {state}")).unwrap_or_default();
    let saved = report.stats.tokens.saturating_sub(report.stats.rounds);
    let guidance = match models.target.guidance() {
        None => String::new(),
        Some(Guidance { reference, form, strength }) => {
            let extra = match (form, strength) {
                (Form::Hidden, Strength::Fixed(_)) => "",
                _ => ", one more readout a pass",
            };
            format!(" · guided by loop {reference}{extra}")
        }
    };
    eprintln!("{loops} loops a pass{draft}{initial} · {saved} passes of all loops saved{guidance}");
}

/// The summary for people.
pub(crate) fn print_summary(
    report: &Report<'_>,
    models: &Models,
    arguments: &GenerateArguments,
    seed: u64,
    finish: Option<FinishReason>,
    elapsed: Duration,
) {
    let Report { stats, costs, share, rate, .. } = report;
    let drafter = match &models.draft {
        Some(draft) => draft.name().to_owned(),
        None => format!("{:?}", models.drafter).to_lowercase(),
    };
    let finish = match (arguments.n, finish) {
        (1, Some(reason)) => format!(" · {reason}"),
        _ => String::new(),
    };
    eprintln!(
        "\n{} tokens in {:.2} s: {rate:.1} tokens/s{finish} · seed {seed}",
        stats.tokens,
        elapsed.as_secs_f64(),
    );
    eprintln!(
        "{} with {drafter} · {} rounds, {} tokens per round · {} of {} drafted tokens accepted",
        models.target.name(),
        stats.rounds,
        figure(stats.tokens_per_round(), 2),
        stats.accepted,
        stats.drafted
    );
    print_loops(report, models);
    if stats.drafted > 0 {
        let by_position: Vec<String> =
            report.by_position().iter().map(|share| format!("{share:.2}")).collect();
        eprintln!("accepted by position: {}", by_position.join(" "));
        eprintln!(
            "alpha {} · draft step c {} · verify pass v {} · predicted speed-up {}",
            figure(report.alpha(), 3),
            figure(costs.c, 3),
            figure(costs.v_verify, 2),
            figure(report.predicted_speedup(), 2)
        );
    }
    if machine::kernels() == Kernels::General {
        eprintln!("general kernels: rows may differ in their last bits with the length of a draft");
    }
    eprintln!(
        "entropy {} bits, {} eligible tokens on average",
        figure(stats.entropy_bits(), 2),
        figure(stats.eligible_tokens(), 1)
    );
    eprintln!(
        "time: draft {:.0} %, verify {:.0} %, sampler {:.0} %, other {:.0} %",
        100.0 * share.draft,
        100.0 * share.verify,
        100.0 * share.sampler,
        100.0 * share.other()
    );
    if arguments.show_draft {
        let legend = |origin, name: &str| format!("\x1b[{}m{name}\x1b[0m", colour(origin));
        eprintln!(
            "{} · {} · {}",
            legend(Origin::Draft, "accepted draft"),
            legend(Origin::Residual, "residual"),
            legend(Origin::Bonus, "bonus")
        );
    }
}
