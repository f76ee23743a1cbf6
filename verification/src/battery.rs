//! The scenes that the levels `exact` and `toy` and the mutants run on.
//!
//! Vocabularies have four ids or more (with two, a wrong residual is right by accident), rows
//! depend on the last two tokens, some tokens are impossible somewhere, texts may end inside a
//! block, and a text takes several rounds.

use draftproof_decode::{
    Decimal, Limits, Settings, TableModel, Token,
    draft::length::{CostModel, DraftLength},
};

use crate::{
    marks::Mark,
    scene::{DraftSource, Rule, Scene},
};

/// The vocabulary of the tables.
pub const VOCAB: usize = 4;

/// Costs under which `auto` stops at all places of a block.
pub const AUTO: DraftLength = DraftLength::Auto(CostModel { draft_step: 0.05, row: 0.4 });

fn hash(seed: u64, last: &[Token]) -> u64 {
    last.iter().fold(seed, |hash, token| {
        (hash ^ u64::from(token.0 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

fn step(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    *state
}

/// A pseudo-random table: rows depend on the last two tokens, some tokens are impossible somewhere,
/// and ties occur.
#[must_use]
pub fn table(seed: u64) -> TableModel {
    TableModel::new(VOCAB, 64, 2, |last| {
        let mut state = hash(seed, last);
        let logit = |_| match step(&mut state) >> 60 {
            0 => f32::NEG_INFINITY,
            step => (step as f32 - 8.0) / 3.0,
        };
        (0..VOCAB).map(logit).collect()
    })
}

/// A table without impossible tokens, of `levels` logits between 0 and `range`; few of them make
/// ties.
#[must_use]
pub fn full(seed: u64, levels: u64, range: f32) -> TableModel {
    TableModel::new(VOCAB, 64, 2, |last| {
        let mut state = hash(seed, last);
        let logit = |_| ((step(&mut state) >> 40) % levels) as f32 * range / levels as f32;
        (0..VOCAB).map(logit).collect()
    })
}

/// Rows of three nearly equal tokens after each of three: for noise that is spent twice.
fn even() -> TableModel {
    TableModel::new(3, 32, 1, |last| match last[0].0 {
        0 => vec![0.5, 0.0, 0.4],
        1 => vec![0.2, 0.9, 0.0],
        _ => vec![0.0, 0.6, 0.7],
    })
}

/// Texts of three tokens, of three, with a watermark in mode `fast` under all keys.
#[must_use]
pub fn fast_watermark(gamma: usize) -> Scene {
    let skewed = TableModel::new(3, 32, 1, |last| match last[0].0 {
        0 => vec![0.0, 0.8, 0.3],
        1 => vec![1.0, 0.1, 0.4],
        _ => vec![0.7, 0.0, 0.2],
    });
    Scene {
        target: even(),
        draft: DraftSource::Model(skewed),
        watermark: Some(Mark::any_key(1)),
        prompt: tokens(&[1, 2]),
        limits: Limits { max_tokens: 3, eos: Vec::new(), draft_len: DraftLength::Fixed(gamma) },
        ..plain("rejection/watermark fast", gamma)
    }
}

/// p = (0.1, 0.2, 0.3, 0.4) or q reversed, at every position.
fn constant(weights: [f32; VOCAB]) -> TableModel {
    TableModel::new(VOCAB, 64, 1, |_| weights.map(f32::ln).to_vec())
}

fn tokens(ids: &[u32]) -> Vec<Token> {
    ids.iter().copied().map(Token).collect()
}

fn decimal(text: &str) -> Decimal {
    text.parse().expect("a decimal")
}

/// A scene of `gamma + 2` tokens under the rejection rule with a draft model; others change parts
/// of it.
#[must_use]
pub fn plain(name: &str, gamma: usize) -> Scene {
    Scene {
        name: name.to_owned(),
        target: table(1),
        draft: DraftSource::Model(table(77)),
        rule: Rule::Rejection,
        settings: Settings::default(),
        watermark: None,
        prompt: tokens(&[0, 2]),
        limits: Limits {
            max_tokens: gamma + 2,
            eos: tokens(&[3]),
            draft_len: DraftLength::Fixed(gamma),
        },
    }
}

fn ngram_prompt() -> Vec<Token> {
    tokens(&[0, 1, 2, 0, 0, 2, 1, 1, 0])
}

/// The settings of the battery, by name.
#[must_use]
pub fn settings() -> Vec<(&'static str, Settings)> {
    let plain = Settings::default;
    vec![
        ("T=1", plain()),
        ("T=0.6", Settings { temperature: 0.6, ..plain() }),
        ("T=0", Settings { temperature: 0.0, ..plain() }),
        ("top-k=2", Settings { top_k: 2, ..plain() }),
        ("top-k=3", Settings { top_k: 3, ..plain() }),
        ("top-p=0.8", Settings { top_p: decimal("0.8"), ..plain() }),
        ("min-p=0.2", Settings { min_p: decimal("0.2"), ..plain() }),
        (
            "penalties",
            Settings {
                repetition_penalty: 1.3,
                presence_penalty: 0.5,
                frequency_penalty: 1.0,
                ..plain()
            },
        ),
    ]
}

/// The contracts of the battery, by name: each of the settings, and two with a watermark.
#[must_use]
pub fn contracts() -> Vec<(&'static str, Settings, Option<Mark>)> {
    let plain = settings().into_iter().map(|(name, settings)| (name, settings, None));
    let marked =
        ["T=1", "top-k=3"].map(setting).into_iter().zip(["watermark", "watermark/top-k=3"]);
    plain.chain(marked.map(|(settings, name)| (name, settings, Some(Mark::one_key(1))))).collect()
}

fn setting(name: &str) -> Settings {
    let found = settings().into_iter().find(|(known, _)| *known == name);
    found.expect("a setting of the battery").1
}

/// All scenes. Names start with the rule.
#[must_use]
pub fn scenes() -> Vec<Scene> {
    let mut scenes = Vec::new();
    for rule in Rule::ALL {
        let name = rule.name();
        let of = |what: &str| Scene { rule, ..plain(&format!("{name}/{what}"), 2) };
        let with = |what: &str, settings: Settings| Scene {
            target: full(3, 9, 3.0),
            draft: DraftSource::Model(full(8, 9, 3.0)),
            settings,
            ..of(what)
        };
        scenes.extend([
            of("model"),
            with("model/T=0.6", setting("T=0.6")),
            with("model/top-k", setting("top-k=3")),
            with("model/top-p", setting("top-p=0.8")),
            with("model/min-p", setting("min-p=0.2")),
            with("model/penalties", setting("penalties")),
            Scene {
                draft: DraftSource::Ngram,
                prompt: ngram_prompt(),
                ..with("ngram", Settings::default())
            },
            Scene {
                limits: Limits { max_tokens: 5, draft_len: AUTO, ..of("").limits },
                ..of("model/auto")
            },
            Scene {
                watermark: Some(Mark::one_key(5)),
                limits: Limits { max_tokens: 5, eos: Vec::new(), ..of("").limits },
                ..with("model/watermark", setting("top-k=3"))
            },
        ]);
    }
    scenes.extend(special());
    scenes
}

/// Scenes made for one kind of fault.
fn special() -> Vec<Scene> {
    let long = |scene: Scene, max_tokens, gamma| Scene {
        limits: Limits { max_tokens, eos: Vec::new(), draft_len: DraftLength::Fixed(gamma) },
        ..scene
    };
    let pair_a = |name: &str| Scene {
        target: constant([0.1, 0.2, 0.3, 0.4]),
        draft: DraftSource::Model(constant([0.4, 0.3, 0.2, 0.1])),
        ..plain(name, 2)
    };
    vec![
        fast_watermark(2),
        long(pair_a("rejection/pair A"), 4, 2),
        Scene { rule: Rule::Block, ..long(pair_a("block/pair A"), 4, 2) },
        Scene {
            target: full(5, 3, 2.0),
            draft: DraftSource::Model(full(6, 3, 2.0)),
            settings: setting("top-k=2"),
            ..plain("rejection/ties", 2)
        },
        Scene {
            target: full(3, 9, 3.0),
            draft: DraftSource::Model(full(11, 1000, 14.0)),
            ..plain("rejection/large logits", 2)
        },
        Scene {
            target: even(),
            draft: DraftSource::Ngram,
            rule: Rule::Block,
            prompt: ngram_prompt(),
            ..long(plain("block/ngram/five tokens", 3), 5, 3)
        },
    ]
}

/// The scene of this name.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn scene(name: &str) -> Scene {
    let found = scenes().into_iter().find(|scene| scene.name == name);
    found.unwrap_or_else(|| panic!("no scene is called {name}"))
}
