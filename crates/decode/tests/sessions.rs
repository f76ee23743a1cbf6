//! Several continuations at once: each is what it would be alone, and nothing is left open.

use draftproof_decode::{
    Engine, Error, FinishReason, LanguageModel, Limits, Sampler, Session, Settings, TableModel,
    Token,
    draft::{
        Drafter, NoDrafter,
        length::{CostModel, DraftLength},
        model::ModelDrafter,
        ngram::NgramDrafter,
    },
    error::ListenerError,
    generate,
    noise::{ChaCha, Recorded, Seed},
    session::{Emitted, Listener},
    stats::{Meter, NoClock},
    trace::{RecordError, Recorder, Run},
    verify::{BlockRule, Coupled, FastWatermark, Rejection, Verifier},
    watermark::{Key, Mode, Scheme, StoredKey, Watermark},
};

const VOCAB: usize = 6;

fn table(seed: u64) -> TableModel {
    TableModel::new(VOCAB, 40, 2, |last| {
        let mut state = last.iter().fold(seed, |hash, token| {
            (hash ^ u64::from(token.0 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
        });
        (0..VOCAB)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 58) as f32 / 20.0
            })
            .collect()
    })
}

fn run(
    drafter: &mut dyn Drafter,
    target: &mut TableModel,
    verifier: &dyn Verifier,
    sessions: &mut [Session],
    listener: &mut dyn Listener,
) -> Result<(), draftproof_decode::Error> {
    let sampler = Sampler::new(Settings::default(), VOCAB).expect("settings");
    let mut engine = Engine {
        target,
        drafter,
        verifier,
        sampler: &sampler,
        noise: &mut Recorded::new(ChaCha),
        meter: &mut Meter::new(NoClock),
    };
    generate(&mut engine, sessions, listener)
}

fn session(prompt: &[u32], sequence: u64, max_tokens: usize, eos: &[u32]) -> Session {
    let prompt: Vec<Token> = prompt.iter().copied().map(Token).collect();
    let eos = eos.iter().copied().map(Token).collect();
    let limits = Limits { max_tokens, eos, draft_len: DraftLength::Fixed(3) };
    Session::new(&prompt, Seed { seed: 5, sequence }, limits)
}

/// Alone or in company, with equal and unequal prompts, limits and ends: the same tokens, the same
/// counters; and both models end with no sequence open.
#[test]
fn company_changes_nothing() {
    let verifiers: [&dyn Verifier; 3] = [&Rejection, &BlockRule, &Coupled];
    for verifier in verifiers {
        let make = || {
            let mut all: Vec<Session> =
                (0..5).map(|sequence| session(&[1, 2, 3], sequence, 12, &[0])).collect();
            all.push(session(&[4], 5, 0, &[]));
            all.push(session(&[2, 3], 6, 20, &[]));
            all.push(session(&[1, 2, 3], 7, 100, &[]));
            all
        };
        let (mut target, mut draft) = (table(1), table(2));
        let mut together = make();
        let drafter = &mut ModelDrafter::new(&mut draft);
        run(drafter, &mut target, verifier, &mut together, &mut ()).expect("runs");
        assert_eq!(target.open_sequences(), 0);
        assert_eq!(draft.open_sequences(), 0);
        for (mut alone, among) in make().into_iter().zip(&together) {
            let drafter = &mut ModelDrafter::new(&mut draft);
            let alone = std::slice::from_mut(&mut alone);
            run(drafter, &mut target, verifier, alone, &mut ()).expect("runs");
            assert_eq!(alone[0].generated(), among.generated());
            assert_eq!(alone[0].finish(), among.finish());
            assert_eq!(alone[0].stats(), among.stats());
        }
        assert_eq!(together[5].finish(), Some(FinishReason::Length));
        assert!(together[5].generated().is_empty());
        assert_eq!(together[7].finish(), Some(FinishReason::Context));
        assert_eq!(together[7].generated().len(), 40 - 3);
        assert_ne!(together[0].generated(), together[1].generated(), "siblings share noise");
    }
}

/// Caps of every size around the draft length are met exactly, and cut nothing but the tail.
#[test]
fn caps_are_met_exactly() {
    let mut longest = [session(&[1], 0, 30, &[])];
    run(&mut NgramDrafter, &mut table(1), &Coupled, &mut longest, &mut ()).expect("runs");
    for cap in 0..12 {
        let mut capped = [session(&[1], 0, cap, &[])];
        run(&mut NgramDrafter, &mut table(1), &Coupled, &mut capped, &mut ()).expect("runs");
        assert_eq!(capped[0].generated(), &longest[0].generated()[..cap]);
        assert_eq!(capped[0].stats().tokens, cap as u64);
    }
}

/// Ends text after a number of tokens, or fails.
struct Cutter {
    seen: Vec<Token>,
    stop_at: usize,
    fail_at: usize,
}

impl Listener for Cutter {
    fn token(&mut self, emitted: &Emitted<'_>) -> Result<bool, ListenerError> {
        self.seen.push(emitted.token);
        if self.seen.len() == self.fail_at {
            return Err("no more paper".into());
        }
        Ok(self.seen.len() == self.stop_at)
    }
}

/// A stop at every place of a block ends the text there; later tokens of the block never show.
#[test]
fn a_stop_inside_a_block_discards_the_rest() {
    for stop_at in 1..10 {
        let mut cutter = Cutter { seen: Vec::new(), stop_at, fail_at: usize::MAX };
        let mut sessions = [session(&[1], 0, 30, &[])];
        let mut twin = table(1);
        let drafter = &mut ModelDrafter::new(&mut twin);
        run(drafter, &mut table(1), &Rejection, &mut sessions, &mut cutter).expect("runs");
        assert_eq!(sessions[0].finish(), Some(FinishReason::Stop));
        assert_eq!(sessions[0].generated(), cutter.seen);
        assert_eq!(cutter.seen.len(), stop_at);
        assert_eq!(sessions[0].stats().tokens, stop_at as u64);
    }
}

#[test]
fn a_listener_that_fails_stops_the_run_and_keeps_the_tokens() {
    let mut cutter = Cutter { seen: Vec::new(), stop_at: usize::MAX, fail_at: 5 };
    let mut sessions = [session(&[1], 0, 30, &[])];
    let mut target = table(1);
    let error = run(&mut NoDrafter, &mut target, &Rejection, &mut sessions, &mut cutter);
    let error = error.expect_err("the listener fails").to_string();
    assert_eq!(error, "the output failed: no more paper");
    assert_eq!(sessions[0].generated(), cutter.seen);
    assert_eq!(target.open_sequences(), 0);
}

/// A draft with a smaller context drafts while it can, and plain decoding goes on.
#[test]
fn a_draft_with_a_smaller_context_stops_drafting() {
    let mut draft = TableModel::new(VOCAB, 12, 2, |last| {
        table(1).logits(&[last[0], last[last.len() - 1]]).to_vec()
    });
    let mut sessions = [session(&[1, 2], 0, 30, &[])];
    let drafter = &mut ModelDrafter::new(&mut draft);
    run(drafter, &mut table(1), &Rejection, &mut sessions, &mut ()).expect("runs");
    assert_eq!(sessions[0].generated().len(), 30);
    let drafted = sessions[0].stats().drafted;
    assert!(drafted > 0 && drafted < 25, "{drafted}");
}

/// A NaN or all-banned row of the draft ends the proposal and is told; one of the target is an error
/// that names the position, unless it decides nothing.
#[test]
fn unusable_rows() {
    let broken = |seed: u64, bad: f32| {
        TableModel::new(VOCAB, 40, 1, move |last| {
            let row = table(seed).logits(&[last[0], last[0]]).to_vec();
            if last[0] == Token(3) { vec![bad; VOCAB] } else { row }
        })
    };
    #[derive(Default)]
    struct Warnings(Vec<String>);
    impl Listener for Warnings {
        fn token(&mut self, _: &Emitted<'_>) -> Result<bool, ListenerError> {
            Ok(false)
        }
        fn warning(&mut self, _: draftproof_decode::draft::SessionId, message: &str) {
            self.0.push(message.into());
        }
    }
    for (bad, words) in [(f32::NAN, "token 0 is NaN"), (f32::NEG_INFINITY, "no token is left")] {
        let (mut draft, mut warnings) = (broken(1, bad), Warnings::default());
        let mut sessions = [session(&[1], 0, 30, &[])];
        let drafter = &mut ModelDrafter::new(&mut draft);
        run(drafter, &mut table(1), &Rejection, &mut sessions, &mut warnings).expect("runs");
        assert_eq!(sessions[0].generated().len(), 30);
        assert_eq!(warnings.0.len() as u64, sessions[0].stats().unusable_draft_rows);
        assert!(warnings.0[0].contains(words), "{}", warnings.0[0]);

        let mut sessions = [session(&[3], 0, 30, &[])];
        let error = run(&mut NoDrafter, &mut broken(1, bad), &Rejection, &mut sessions, &mut ());
        let error = error.expect_err("the first row decides a token").to_string();
        assert!(error.contains("position 1") && error.contains(words), "{error}");
    }
    // The draft always proposes 3, the target never takes it: the rows behind it decide nothing.
    let only = |id: usize| {
        let mut row = vec![f32::NEG_INFINITY; VOCAB];
        row[id] = 0.0;
        row
    };
    let verifiers: [&dyn Verifier; 3] = [&Rejection, &BlockRule, &Coupled];
    for verifier in verifiers {
        let mut draft = TableModel::new(VOCAB, 40, 1, |_| only(3));
        let mut target = TableModel::new(VOCAB, 40, 1, |last| match last[0].0 {
            3 => vec![f32::NAN; VOCAB],
            id => only((id as usize + 1) % 3),
        });
        let mut sessions = [session(&[0], 0, 9, &[])];
        let drafter = &mut ModelDrafter::new(&mut draft);
        run(drafter, &mut target, verifier, &mut sessions, &mut ()).expect("unused rows");
        assert_eq!(sessions[0].generated().len(), 9);
        assert_eq!(sessions[0].stats().accepted, 0);
    }
    assert_eq!(table(1).vocab(), VOCAB);
}

/// Who carries the mark must be agreed: a rule that marks draws on laws that are marked already, or
/// the reverse, would follow no law that anybody asked for. Mode `fast` with a draft length that
/// learns from discarded tokens would not follow its own, and a trace of rejection would lie about
/// its draws.
#[test]
fn a_watermark_and_a_rule_that_do_not_go_together_are_refused() {
    let key = Key::new(vec![3, 1, 4]);
    let scheme = Scheme { depth: 3, ..Scheme::default() };
    let key = StoredKey::new(scheme, key, "2026-01-01".into(), None).expect("a key");
    let watermark = |mode| Watermark::new(&key, mode);
    let fast = watermark(Mode::Fast);
    let marking = FastWatermark { watermark: &fast };
    let plain = || Sampler::new(Settings::default(), VOCAB).expect("settings");
    let run = |sampler: &Sampler, verifier: &dyn Verifier, draft_len| {
        let limits = Limits { max_tokens: 4, eos: Vec::new(), draft_len };
        let mut sessions = [Session::new(&[Token(1)], Seed::default(), limits)];
        let (mut target, mut draft) = (table(1), table(2));
        let mut engine = Engine {
            target: &mut target,
            drafter: &mut ModelDrafter::new(&mut draft),
            verifier,
            sampler,
            noise: &mut ChaCha,
            meter: &mut Meter::new(NoClock),
        };
        generate(&mut engine, &mut sessions, &mut ())
    };
    let auto = DraftLength::Auto(CostModel { draft_step: 0.1, row: 0.1 });
    let (exact, fast) =
        (plain().watermarked(watermark(Mode::Exact)), plain().watermarked(fast.clone()));
    for rule in [&Rejection as &dyn Verifier, &BlockRule, &Coupled] {
        run(&exact, rule, auto).expect("any rule keeps marked laws");
        let error = run(&fast, rule, DraftLength::Fixed(2)).expect_err("no draw is marked");
        assert!(matches!(error, Error::WatermarkRule { fast: true, .. }), "{error}");
    }
    for sampler in [&plain(), &exact] {
        let error = run(sampler, &marking, DraftLength::Fixed(2)).expect_err("marked twice or not");
        assert!(matches!(error, Error::WatermarkRule { fast: false, .. }), "{error}");
    }
    run(&fast, &marking, DraftLength::Fixed(2)).expect("they go together");
    let error = run(&fast, &marking, auto).expect_err("auto learns from discarded tokens");
    assert!(matches!(error, Error::WatermarkLength), "{error}");
    let record =
        Run { verifier: marking.name(), contract: None, vocab: VOCAB, context: 40, full: false };
    let error =
        Recorder::new(&record, &[]).expect_err("its draws are from laws that no line holds");
    assert!(matches!(error, RecordError::UnknownVerifier { .. }), "{error}");
}
