//! Shows that draftproof's text follows the target's law, and that wrong samplers are caught.
//!
//! # The claim
//! Given the logits that the target computed, the emitted tokens follow *exactly* the law that the
//! sampler contract makes of them, whatever the draft, the draft length and the rule of
//! verification.
//!
//! # How it is shown
//! | level | what is run | what it is compared with | module |
//! |---|---|---|---|
//! | `exact` | every path of the real loop on table models | the target's law, as rationals with `==` | [`exact`] |
//! | `toy` | the real loop with the noise of production on table models | the exact joint law, per place too, and of acceptances | [`toy`] |
//! | `model` | the real loop on a real pair | the joint law walked through the target's prefix tree | [`model`] |
//! | `watermark` | the detector on marked text of the pair and on other text | the law of p-values, and of pairs of texts | [`watermark`] |
//!
//! Sampled checks decide by an [`e_value`]: its false-alarm rate holds at every sample size, and
//! Holm's rule ([`family`]) keeps it over the whole run. Each states the smallest deviation it
//! would have seen ([`power`]) and a certified [`bound`]. A check that cannot fail proves nothing,
//! so the same checks must catch every wrong sampler of [`mutants`]. [`audit`] puts samples of
//! *another* engine to the same test.
//!
//! # Example
//! ```
//! use draftproof_verification::{Plan, plan::Level, run};
//!
//! let plan = Plan { level: Level::Toy, samples: Some(2_000), ..Plan::default() };
//! let report = run(&plan, None, &mut ())?;
//! assert!(report.passed, "{}", report.table(120));
//! # Ok::<(), draftproof_verification::Error>(())
//! ```

pub mod audit;
pub mod battery;
pub mod bound;
pub mod e_value;
pub mod error;
pub mod exact;
pub mod family;
pub mod goodness;
pub mod marks;
pub mod model;
pub mod mutants;
pub mod plan;
pub mod power;
pub mod progress;
pub mod report;
mod run;
pub mod scene;
pub mod toy;
pub mod watermark;

pub use error::Error;
pub use model::Pair;
pub use plan::Plan;
pub use progress::Progress;
pub use report::Report;
pub use run::{FEWEST_SAMPLES, FEWEST_TEXTS, run};
