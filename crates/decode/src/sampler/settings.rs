//! [`Settings`]: what the user chose, how it is checked, and what of it makes the law.

use std::fmt;

use super::{Order, Step, TopKTies};
use crate::{Decimal, Token, dist::MAX_VOCAB};

/// What the user chose; plain data. [`Sampler::new`](super::Sampler::new) checks it.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Makes tokens of the prompt and the output less likely: a positive number; 1 is off.
    pub repetition_penalty: f64,
    /// Taken from the logit of each token in the output; 0 is off.
    pub presence_penalty: f64,
    /// Taken from the logit of a token once for each time it is in the output; 0 is off.
    pub frequency_penalty: f64,
    /// Added to the logits of these tokens: finite, or −∞ for a ban.
    pub logit_bias: Vec<(Token, f64)>,
    /// Sequences that the text may not come to contain.
    pub bad_words: Vec<Vec<Token>>,
    /// No n-gram of this length occurs twice; 0 is off.
    pub no_repeat_ngram: usize,
    /// No token of [`eos`](Self::eos) before this many tokens were generated; 0 is off.
    pub min_tokens: usize,
    /// What [`min_tokens`](Self::min_tokens) bans. (That these tokens end a text is said in
    /// [`Limits`](crate::Limits), not here.)
    pub eos: Vec<Token>,
    /// Divides the logits: 0 (greedy) or positive and finite.
    pub temperature: f64,
    /// Keep this many tokens; 0 keeps all.
    pub top_k: usize,
    /// Which of the tokens tied with the last of those stay.
    pub top_k_ties: TopKTies,
    /// Keep the locally typical tokens up to this mass, above 0 and at most 1; 1 keeps all.
    pub typical: Decimal,
    /// Keep the heaviest tokens up to this mass, above 0 and at most 1; 1 keeps all.
    pub top_p: Decimal,
    /// Keep tokens at least this many times as likely as the likeliest, 0 to 1; 0 keeps all.
    pub min_p: Decimal,
    /// The order of all these.
    pub order: Order,
}

impl Default for Settings {
    /// Temperature 1, all else off: the model's own law.
    fn default() -> Self {
        Self {
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            bad_words: Vec::new(),
            no_repeat_ngram: 0,
            min_tokens: 0,
            eos: Vec::new(),
            temperature: 1.0,
            top_k: 0,
            top_k_ties: TopKTies::LowestId,
            typical: Decimal::ONE,
            top_p: Decimal::ONE,
            min_p: Decimal::ZERO,
            order: Order::DEFAULT,
        }
    }
}

/// A setting outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: expected {expected}, found {found}")]
pub struct SettingError {
    /// The setting.
    pub name: &'static str,
    /// Its range.
    pub expected: &'static str,
    /// The value given.
    pub found: String,
}

fn require(
    holds: bool,
    name: &'static str,
    expected: &'static str,
    found: impl fmt::Display,
) -> Result<(), SettingError> {
    if holds {
        return Ok(());
    }
    let found = found.to_string();
    Err(SettingError { name, expected, found })
}

impl Settings {
    /// Whether every setting is in its range, for a vocabulary of `vocab` ids.
    pub(super) fn check(&self, vocab: usize) -> Result<(), SettingError> {
        // Destructured, so that a new setting cannot be forgotten here.
        let Self {
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias,
            bad_words,
            no_repeat_ngram: _,
            min_tokens,
            eos,
            temperature,
            top_k: _,
            top_k_ties: _,
            typical,
            top_p,
            min_p,
            order: _,
        } = self;
        require((1..=MAX_VOCAB).contains(&vocab), "vocabulary", "1 to 2^24 ids", vocab)?;
        require(
            repetition_penalty.is_finite() && *repetition_penalty > 0.0,
            "repetition-penalty",
            "a positive number (1 is off)",
            repetition_penalty,
        )?;
        for (name, penalty) in
            [("presence-penalty", presence_penalty), ("frequency-penalty", frequency_penalty)]
        {
            require(penalty.is_finite(), name, "a finite number (0 is off)", penalty)?;
        }
        check_bias(logit_bias, vocab)?;
        for word in bad_words {
            check_ids("bad-words", word, vocab)?;
            require(!word.is_empty(), "bad-words", "at least one token in each", "an empty word")?;
        }
        check_ids("eos", eos, vocab)?;
        require(
            *min_tokens == 0 || !eos.is_empty(),
            "min-tokens",
            "0 (off), or EOS tokens to ban until then",
            format_args!("{min_tokens} without EOS tokens"),
        )?;
        require(
            temperature.is_finite() && *temperature >= 0.0,
            "temperature",
            "0 (greedy) or a positive number",
            temperature,
        )?;
        for (name, mass) in [("typical", typical), ("top-p", top_p)] {
            require(
                *mass > Decimal::ZERO && *mass <= Decimal::ONE,
                name,
                "a number above 0 and at most 1 (1 keeps all)",
                mass,
            )?;
        }
        require(*min_p <= Decimal::ONE, "min-p", "a number from 0 (keeps all) to 1", min_p)
    }

    /// Whether a step does anything under these settings.
    pub(super) fn is_on(&self, step: Step) -> bool {
        match step {
            Step::Logits => true,
            Step::Penalties => {
                self.repetition_penalty != 1.0
                    || self.presence_penalty != 0.0
                    || self.frequency_penalty != 0.0
            }
            Step::Bias => self.logit_bias.iter().any(|&(_, bias)| bias != 0.0),
            Step::Bans => {
                !self.bad_words.is_empty() || self.no_repeat_ngram > 0 || self.min_tokens > 0
            }
            Step::Temperature => self.temperature != 1.0,
            Step::TopK => self.top_k > 0,
            Step::Typical => self.typical < Decimal::ONE,
            Step::TopP => self.top_p < Decimal::ONE,
            Step::MinP => self.min_p > Decimal::ZERO,
        }
    }

    /// The steps that do anything, in order.
    pub(super) fn steps(&self) -> Vec<Step> {
        let steps = self.order.steps().iter().copied();
        steps.filter(|&step| self.is_on(step)).collect()
    }

    /// Everything that makes the law, in a canonical form: to print, and to hash.
    ///
    /// Every setting has an entry, `off` if it is off. What cannot change the law does not show: 0.9
    /// and 0.90 are one number, lists are sorted, EOS tokens only stand with the `min-tokens` that
    /// bans them, and the order is that of the steps that are on. So equal entries mean equal laws.
    /// (The converse is not promised: top-k 9 of 5 ids keeps all, as `off` does.)
    ///
    /// ```
    /// use draftproof_decode::{Settings, sampler::Order};
    /// let settings = Settings { top_p: "0.90".parse()?, order: Order::HF, ..Settings::default() };
    /// let entries = settings.entries();
    /// assert!(entries.contains(&("top-p", "0.9".to_owned())));
    /// assert!(entries.contains(&("min-p", "off".to_owned())));
    /// assert!(entries.contains(&("sampler-order", "top-p".to_owned())));
    /// # Ok::<(), draftproof_decode::decimal::DecimalError>(())
    /// ```
    #[must_use]
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        // Destructured, so that a new setting cannot be forgotten here.
        let Self {
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias,
            bad_words,
            no_repeat_ngram,
            min_tokens,
            eos,
            temperature,
            top_k,
            top_k_ties,
            typical,
            top_p,
            min_p,
            order: _,
        } = self;
        let unless = |off: bool, value: String| if off { "off".to_owned() } else { value };
        // Adding 0 makes −0 and 0 the same number.
        let number = |value: f64| (value + 0.0).to_string();
        vec![
            ("repetition-penalty", unless(*repetition_penalty == 1.0, number(*repetition_penalty))),
            ("presence-penalty", unless(*presence_penalty == 0.0, number(*presence_penalty))),
            ("frequency-penalty", unless(*frequency_penalty == 0.0, number(*frequency_penalty))),
            ("logit-bias", biases(logit_bias)),
            ("bad-words", words(bad_words)),
            ("no-repeat-ngram", unless(*no_repeat_ngram == 0, no_repeat_ngram.to_string())),
            (
                "min-tokens",
                unless(*min_tokens == 0, format!("{min_tokens} (eos {})", ids(&sorted(eos)))),
            ),
            ("temperature", number(*temperature)),
            ("top-k", unless(*top_k == 0, top_k.to_string())),
            ("top-k-ties", unless(*top_k == 0, top_k_ties.to_string())),
            ("typical", unless(*typical == Decimal::ONE, shortest(*typical))),
            ("top-p", unless(*top_p == Decimal::ONE, shortest(*top_p))),
            ("min-p", unless(*min_p == Decimal::ZERO, shortest(*min_p))),
            ("sampler-order", {
                let steps: Vec<String> = self.steps().iter().map(Step::to_string).collect();
                unless(steps.is_empty(), steps.join(","))
            }),
        ]
    }
}

fn check_ids(name: &'static str, ids: &[Token], vocab: usize) -> Result<(), SettingError> {
    let outside = ids.iter().find(|token| token.index() >= vocab);
    outside.map_or(Ok(()), |token| require(false, name, "ids inside the vocabulary", token))
}

fn check_bias(logit_bias: &[(Token, f64)], vocab: usize) -> Result<(), SettingError> {
    const NAME: &str = "logit-bias";
    for &(token, bias) in logit_bias {
        check_ids(NAME, &[token], vocab)?;
        require(
            bias < f64::INFINITY,
            NAME,
            "finite numbers, or -inf for a ban",
            format_args!("{bias} for token {token}"),
        )?;
    }
    let mut tokens: Vec<Token> = logit_bias.iter().map(|&(token, _)| token).collect();
    tokens.sort_unstable();
    let twice = tokens.windows(2).find(|pair| pair[0] == pair[1]);
    twice.map_or(Ok(()), |pair| {
        require(false, NAME, "one number for each token", format_args!("token {} twice", pair[0]))
    })
}

fn sorted<T: Ord + Clone>(items: &[T]) -> Vec<T> {
    let mut items = items.to_vec();
    items.sort_unstable();
    items.dedup();
    items
}

fn ids(tokens: &[Token]) -> String {
    let ids: Vec<String> = tokens.iter().map(Token::to_string).collect();
    ids.join(" ")
}

fn biases(logit_bias: &[(Token, f64)]) -> String {
    let mut biases: Vec<(Token, f64)> = logit_bias.to_vec();
    biases.retain(|&(_, bias)| bias != 0.0);
    biases.sort_by_key(|&(token, _)| token);
    let biases: Vec<String> =
        biases.iter().map(|(token, bias)| format!("{token}:{bias}")).collect();
    if biases.is_empty() { "off".to_owned() } else { biases.join(",") }
}

fn words(bad_words: &[Vec<Token>]) -> String {
    let words: Vec<String> = sorted(bad_words).iter().map(|word| ids(word)).collect();
    if words.is_empty() { "off".to_owned() } else { words.join(",") }
}

/// A decimal without trailing zeros: one text for each number.
fn shortest(decimal: Decimal) -> String {
    let typed = decimal.to_string();
    if typed.contains('.') {
        typed.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        typed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        text.parse().expect("a decimal")
    }

    fn tokens(ids: &[u32]) -> Vec<Token> {
        ids.iter().copied().map(Token).collect()
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let plain = Settings::default;
        let penalty = |value| Settings { repetition_penalty: value, ..plain() };
        let bias = |bias: &[(u32, f64)]| Settings {
            logit_bias: bias.iter().map(|&(id, b)| (Token(id), b)).collect(),
            ..plain()
        };
        let words = |words: &[&[u32]]| Settings {
            bad_words: words.iter().map(|word| tokens(word)).collect(),
            ..plain()
        };
        let minimum =
            |min_tokens, eos: &[u32]| Settings { min_tokens, eos: tokens(eos), ..plain() };
        let refused = [
            (penalty(0.0), "repetition-penalty: expected a positive number (1 is off), found 0"),
            (
                penalty(-1.1),
                "repetition-penalty: expected a positive number (1 is off), found -1.1",
            ),
            (
                penalty(f64::NAN),
                "repetition-penalty: expected a positive number (1 is off), found NaN",
            ),
            (
                penalty(f64::INFINITY),
                "repetition-penalty: expected a positive number (1 is off), found inf",
            ),
            (
                Settings { presence_penalty: f64::NAN, ..plain() },
                "presence-penalty: expected a finite number (0 is off), found NaN",
            ),
            (
                Settings { frequency_penalty: f64::NEG_INFINITY, ..plain() },
                "frequency-penalty: expected a finite number (0 is off), found -inf",
            ),
            (
                bias(&[(4, 1.0), (9, 0.0)]),
                "logit-bias: expected ids inside the vocabulary, found 9",
            ),
            (
                bias(&[(3, f64::INFINITY)]),
                "logit-bias: expected finite numbers, or -inf for a ban, found inf for token 3",
            ),
            (
                bias(&[(3, f64::NAN)]),
                "logit-bias: expected finite numbers, or -inf for a ban, found NaN for token 3",
            ),
            (
                bias(&[(3, 1.0), (2, 1.0), (3, 0.0)]),
                "logit-bias: expected one number for each token, found token 3 twice",
            ),
            (
                words(&[&[1], &[]]),
                "bad-words: expected at least one token in each, found an empty word",
            ),
            (words(&[&[1, 9, 2]]), "bad-words: expected ids inside the vocabulary, found 9"),
            (
                minimum(3, &[]),
                "min-tokens: expected 0 (off), or EOS tokens to ban until then, found 3 without \
                 EOS tokens",
            ),
            (minimum(0, &[9]), "eos: expected ids inside the vocabulary, found 9"),
            (
                Settings { typical: decimal("0"), ..plain() },
                "typical: expected a number above 0 and at most 1 (1 keeps all), found 0",
            ),
            (
                Settings { typical: decimal("1.1"), ..plain() },
                "typical: expected a number above 0 and at most 1 (1 keeps all), found 1.1",
            ),
        ];
        for (settings, message) in refused {
            let error = settings.check(9).expect_err(message);
            assert_eq!(error.to_string(), message);
        }
        for settings in [
            penalty(f64::MIN_POSITIVE),
            penalty(f64::MAX),
            bias(&[(8, f64::NEG_INFINITY), (0, f64::MAX)]),
            words(&[&[8, 8, 8]]),
            minimum(usize::MAX, &[8]),
            Settings { no_repeat_ngram: usize::MAX, ..plain() },
        ] {
            assert_eq!(settings.check(9), Ok(()));
        }
    }

    #[test]
    fn entries_are_complete_and_pinned() {
        let settings = Settings {
            repetition_penalty: 1.3,
            presence_penalty: -0.5,
            frequency_penalty: 0.25,
            logit_bias: vec![(Token(7), f64::NEG_INFINITY), (Token(2), 1.5), (Token(1), 0.0)],
            bad_words: vec![tokens(&[3, 1]), tokens(&[2]), tokens(&[2])],
            no_repeat_ngram: 3,
            min_tokens: 4,
            eos: tokens(&[6, 5, 6]),
            temperature: 0.7,
            top_k: 40,
            top_k_ties: TopKTies::Keep,
            typical: decimal("0.950"),
            top_p: decimal(".90"),
            min_p: decimal("0.05"),
            order: Order::HF,
        };
        let found: Vec<String> =
            settings.entries().iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let expected = [
            "repetition-penalty = 1.3",
            "presence-penalty = -0.5",
            "frequency-penalty = 0.25",
            "logit-bias = 2:1.5,7:-inf",
            "bad-words = 2,3 1",
            "no-repeat-ngram = 3",
            "min-tokens = 4 (eos 5 6)",
            "temperature = 0.7",
            "top-k = 40",
            "top-k-ties = keep",
            "typical = 0.95",
            "top-p = 0.9",
            "min-p = 0.05",
            "sampler-order = bias,penalties,bans,temperature,top-k,top-p,min-p,typical",
        ];
        assert_eq!(found, expected);
        let off = Settings::default().entries();
        assert!(
            off.iter()
                .all(|(name, value)| value == if *name == "temperature" { "1" } else { "off" }),
            "{off:?}"
        );
    }

    #[test]
    fn what_cannot_change_the_law_does_not_show() {
        let plain = Settings::default;
        let same = |settings: Settings, as_these: Settings| {
            assert_eq!(settings.entries(), as_these.entries());
        };
        for (_, order) in Order::PRESETS {
            same(Settings { order, ..plain() }, plain());
            let cold = || Settings { temperature: 0.5, ..plain() };
            same(Settings { order, ..cold() }, cold());
        }
        same(
            Settings {
                temperature: -0.0,
                presence_penalty: -0.0,
                logit_bias: vec![(Token(3), -0.0)],
                eos: tokens(&[1, 2]),
                top_k_ties: TopKTies::Keep,
                typical: decimal("1.00"),
                top_p: decimal("1.0"),
                min_p: decimal("0.000"),
                ..plain()
            },
            Settings { temperature: 0.0, ..plain() },
        );
        // What does change it, does.
        let hot = |order| Settings { temperature: 2.0, top_p: decimal("0.9"), order, ..plain() };
        assert_ne!(hot(Order::DEFAULT).entries(), hot(Order::LLAMA_CPP).entries());
        same(hot(Order::DEFAULT), hot(Order::HF));
    }
}
