//! Wrong samplers leave traces that do not hold.

use draftproof_decode::{
    Dist, Session, Token,
    dist::{Fraction, acceptance, residual},
    draft::{Draft, Proposal, SessionId},
    law::Law,
    noise::{ChaCha, Lane, Noise, PositionKey, RoundKey, RoundNoise},
    sampler::RowError,
    session::JudgedRound,
    trace::{ReplayError, replay},
    verify::{Block, BlockRule, Coupled, Next, Rejection, TargetLaws, Verdict, Verifier},
};

use crate::setup::{Drafts, SETTINGS, Setup, Tape, limits, seed, tokens};

/// Right rules on noise from the wrong address.
#[derive(Debug)]
struct Rekeyed(fn(RoundKey) -> RoundKey, fn(PositionKey) -> PositionKey);

impl Noise for Rekeyed {
    fn coin(&mut self, key: RoundKey, probability: Fraction) -> bool {
        ChaCha.coin(self.0(key), probability)
    }

    fn pick(&mut self, key: RoundKey, law: &dyn Law) -> Token {
        ChaCha.pick(self.0(key), law)
    }

    fn race(&mut self, key: PositionKey, law: &Dist) -> Token {
        ChaCha.race(self.1(key), law)
    }
}

fn refused(verifier: &'static dyn Verifier, full: bool, mut noise: Rekeyed) -> ReplayError {
    (0..20)
        .find_map(|seed| {
            let settings = SETTINGS[0].1();
            let setup = Setup { verifier, drafts: Drafts::Model, settings, seed };
            replay(setup.run_with(full, &mut noise).lines).err()
        })
        .expect("one of 20 texts shows it")
}

#[test]
fn the_drafts_noise_for_the_residual() {
    let reuse = |key: RoundKey| match key.lane {
        Lane::Residual => RoundKey { lane: Lane::Draft, ..key },
        _ => key,
    };
    for rule in [&Rejection as &dyn Verifier, &BlockRule] {
        let error = refused(rule, false, Rekeyed(reuse, |key| key));
        assert_eq!(error.field, "draw.below", "{error}");
    }
}

#[test]
fn noise_keyed_by_position() {
    let by_position = |key: RoundKey| RoundKey {
        round_start: key.round_start + u64::from(key.offset),
        offset: 0,
        ..key
    };
    refused(&Rejection, false, Rekeyed(by_position, |key| key));
    refused(&BlockRule, false, Rekeyed(by_position, |key| key));
}

#[test]
fn one_coin_for_the_whole_block() {
    let shared = |key: RoundKey| match key.lane {
        Lane::Accept => RoundKey { offset: 0, ..key },
        _ => key,
    };
    let error = refused(&BlockRule, false, Rekeyed(shared, |key| key));
    assert_eq!(error.field, "coin.passed", "{error}");
}

/// Without laws nobody can tell who should have won a race.
#[test]
fn the_race_of_another_position() {
    let next = |key: PositionKey| PositionKey { position: key.position + 1, ..key };
    let error = refused(&Coupled, true, Rekeyed(|key| key, next));
    assert_eq!(error.field, "token", "{error}");
    let settings = SETTINGS[0].1();
    let setup = Setup { verifier: &Coupled, drafts: Drafts::Model, settings, seed: 0 };
    let lines = setup.run_with(false, &mut Rekeyed(|key| key, next)).lines;
    replay(lines).expect("the key is right, the winner unknown");
}

/// Rejection on laws with small weights, with one of its steps replaceable.
#[derive(Clone, Copy)]
struct Rule {
    accept: fn(RoundKey, Fraction, &mut dyn Noise) -> bool,
    replace: for<'a> fn(&'a Dist, &'a Dist) -> Box<dyn Law + 'a>,
}

const RIGHT: Rule = Rule {
    accept: |key, chance, noise| noise.decide(key, chance),
    replace: |p, q| Box::new(residual(p, q).expect("p differs from q")),
};

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a rule")
    }
}

impl Verifier for Rule {
    fn name(&self) -> &'static str {
        "rejection"
    }

    fn verify(&self, block: &Block<'_>, noise: &mut dyn Noise) -> Verdict {
        let Block { proposals, target, round, .. } = *block;
        let mut laws = Vec::new();
        for (i, proposal) in proposals.iter().enumerate() {
            let (x, q) = (proposal.token(), proposal.q());
            laws.push(target.law(i).expect("a usable row"));
            let p = &laws[i];
            if !(self.accept)(round.key(i, Lane::Accept), acceptance(p, q, x), noise) {
                let key = round.key(i, Lane::Residual);
                let next = noise.draw(key, (self.replace)(p, q).as_ref());
                return Verdict { accepted: i, next: Ok(Next::residual(next)), laws };
            }
        }
        let gamma = proposals.len();
        laws.push(target.law(gamma).expect("a usable row"));
        let next = noise.draw(round.key(gamma, Lane::Bonus), &laws[gamma]);
        Verdict { accepted: gamma, next: Ok(Next::bonus(next)), laws }
    }
}

#[derive(Debug)]
struct Fixed(Dist);

impl TargetLaws for Fixed {
    fn law(&self, _: usize) -> Result<Dist, RowError> {
        Ok(self.0.clone())
    }
}

/// Six rounds of three drafted tokens each, with p = (1, 2, 3, 1)/7 and q = (3, 2, 1, 1)/7: a coin
/// is one of at most 21 outcomes, so the border between them is met often.
fn trace_of(verifier: &dyn Verifier, number: u64, full: bool) -> Vec<String> {
    let small = |weights: [u64; 4]| Dist::sparse(6, vec![0, 1, 2, 3], weights.to_vec());
    let (p, q) = (small([1, 2, 3, 1]).expect("a law"), small([3, 2, 1, 1]).expect("a law"));
    let sessions = [Session::new(&tokens(&[1]), seed(number, 0), limits(1000))];
    let mut tape = Tape::start(verifier, &sessions, full);
    let mut round_start = 1;
    for _ in 0..6 {
        let round = RoundNoise { seed: sessions[0].seed(), round_start };
        let draw = |offset| Proposal::draw(q.clone(), round, offset, &mut ChaCha);
        let draft = Draft { proposals: (0..3).map(draw).collect(), ..Draft::default() };
        let target = Fixed(p.clone());
        let block = Block { proposals: &draft.proposals, target: &target, round, generated: &[] };
        let verdict = verifier.verify(&block, &mut ChaCha);
        let kept = verdict.accepted + 1;
        tape.record(&JudgedRound {
            session: SessionId(0),
            noise: round,
            draft: &draft,
            verdict: &verdict,
            kept,
            finish: None,
        });
        round_start += kept as u64;
    }
    tape.end(sessions.to_vec()).lines
}

/// Of 100 traces of six rounds, how many do not hold, and in which fields.
fn shown(verifier: &dyn Verifier, full: bool) -> Vec<ReplayError> {
    (0..100).filter_map(|number| replay(trace_of(verifier, number, full)).err()).collect()
}

#[test]
fn the_right_rule_on_small_laws() {
    for full in [false, true] {
        assert_eq!(shown(&RIGHT, full), []);
        assert_eq!(shown(&Rejection, full), []);
        assert_eq!(shown(&BlockRule, full), []);
    }
}

/// `U ≤ a` in place of `U < a`.
#[test]
fn accepts_with_at_most() {
    let at_most = |key, chance: Fraction, _: &mut dyn Noise| {
        ChaCha::uniform(key, chance.denominator) <= chance.numerator
    };
    let errors = shown(&Rule { accept: at_most, ..RIGHT }, false);
    println!("{} of 100 traces refused, {}", errors.len(), errors[0]);
    assert!(errors.len() > 20);
    assert!(errors.iter().all(|error| error.field == "coin.passed"));
}

#[test]
fn accepts_everything() {
    let errors = shown(&Rule { accept: |_, _, _| true, ..RIGHT }, false);
    assert!(errors.len() > 90);
    assert!(errors.iter().all(|error| error.field == "coin.passed"));
}

/// After a rejection the token comes from p itself.
#[test]
fn no_residual() {
    let errors = shown(&Rule { replace: |p, _| Box::new(p.clone()), ..RIGHT }, false);
    assert!(errors.len() > 50, "{}", errors.len());
    let fields = ["draw.weight", "draw.below", "token"];
    assert!(errors.iter().all(|error| fields.contains(&error.field.as_str())));
}
