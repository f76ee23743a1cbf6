//! Wrong samplers seen in other engines, each plugged in at the seam where the bug would live.
//! The check that passes the real rule must reject every one of them.

use draftproof_decode::{
    Dist, Error, Sampler, TableModel, Token,
    dist::{Fraction, acceptance, residual},
    draft::{Draft, Drafter, Proposal, Request, SessionId},
    law::Law,
    mutation::forge,
    noise::{Lane, Noise, RoundNoise},
    sampler::Prefix,
    stats::Meter,
    verify::{Block, Next, Verdict, Verifier},
};
use ruint::aliases::U256;

/// The rejection rule with its two formulas replaceable.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    accept: fn(&Dist, &Dist, Token) -> Fraction,
    replace: for<'a> fn(&'a Dist, &'a Dist, Token) -> Box<dyn Law + 'a>,
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Verifier for Rule {
    fn name(&self) -> &'static str {
        self.name
    }

    fn verify(&self, block: &Block<'_>, noise: &mut dyn Noise) -> Verdict {
        let Block { proposals, target, round, .. } = *block;
        let mut laws = Vec::new();
        for (i, proposal) in proposals.iter().enumerate() {
            let (x, q) = (proposal.token(), proposal.q());
            laws.push(target.law(i).expect("a usable row"));
            let p = &laws[i];
            if !noise.decide(round.key(i, Lane::Accept), (self.accept)(p, q, x)) {
                let key = round.key(i, Lane::Residual);
                let next = noise.draw(key, (self.replace)(p, q, x).as_ref());
                return Verdict { accepted: i, next: Ok(Next::residual(next)), laws };
            }
        }
        let gamma = proposals.len();
        laws.push(target.law(gamma).expect("a usable row"));
        let next = noise.draw(round.key(gamma, Lane::Bonus), &laws[gamma]);
        Verdict { accepted: gamma, next: Ok(Next::bonus(next)), laws }
    }
}

/// A drafter whose single proposal is replaceable; `None` proposes no (further) token.
#[derive(Clone)]
pub(crate) struct TableDrafter {
    pub(crate) name: &'static str,
    pub(crate) table: TableModel,
    pub(crate) propose: fn(Dist, RoundNoise, usize, &mut dyn Noise) -> Option<Proposal>,
}

impl std::fmt::Debug for TableDrafter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Drafter for TableDrafter {
    fn propose(
        &mut self,
        requests: &[Request<'_>],
        sampler: &Sampler,
        noise: &mut dyn Noise,
        _: &mut Meter,
    ) -> Result<Vec<Draft>, Error> {
        let one = |request: &Request<'_>| {
            let mut draft = Draft::default();
            let mut tokens = request.prefix.tokens.to_vec();
            for offset in 0..request.limit {
                let prefix = Prefix { tokens: &tokens, ..request.prefix };
                let q = sampler.law(prefix, self.table.logits(&tokens)).expect("a law");
                let Some(proposal) = (self.propose)(q, request.round, offset, noise) else {
                    break;
                };
                tokens.push(proposal.token());
                draft.proposals.push(proposal);
            }
            draft
        };
        Ok(requests.iter().map(one).collect())
    }

    fn close(&mut self, _: SessionId) {}
}

fn certain() -> Fraction {
    Fraction::new(1, 1)
}

fn right_residual<'a>(p: &'a Dist, q: &'a Dist, _: Token) -> Box<dyn Law + 'a> {
    // A mutant of the acceptance rule may reject where the right rule cannot.
    residual(p, q).map_or_else(|| Box::new(p.clone()) as Box<dyn Law + 'a>, |r| Box::new(r))
}

fn without(p: &Dist, x: Token) -> Dist {
    let weights = (0..p.vocab()).map(Token::at).map(|t| if t == x { 0 } else { p.weight(t) });
    Dist::dense(weights.collect()).unwrap_or_else(|_| p.clone())
}

/// softmax(max(0, p − q)) instead of a division by the sum: every token gets some mass.
fn softmax_residual(p: &Dist, q: &Dist) -> Dist {
    let excess = (0..p.vocab()).map(Token::at).map(|t| {
        let r = (p.probability(t) - q.probability(t)).max(0.0);
        (r.exp() * 2f64.powi(40)) as u64
    });
    Dist::dense(excess.collect()).expect("positive weights")
}

/// "Same token as an independent draw from the target, or ratio": two chances to be accepted.
fn two_chances(p: &Dist, q: &Dist, x: Token) -> Fraction {
    let ratio = acceptance(p, q, x);
    let (a, b) = (ratio.numerator.min(ratio.denominator), ratio.denominator);
    let (same, total) = (U256::from(p.weight(x)), U256::from(p.total()));
    Fraction { numerator: same * b + (total - same) * a, denominator: total * b }
}

/// F1, F2, F3, F5, F8, F12: a wrong rule in the verifier.
pub(crate) const RULES: [Rule; 6] = [
    Rule { name: "F1 all accepted", accept: |_, _, _| certain(), replace: right_residual },
    Rule {
        name: "F2 residual through softmax",
        accept: acceptance,
        replace: |p, q, _| Box::new(softmax_residual(p, q)),
    },
    Rule {
        name: "F3 target law after a rejection",
        accept: acceptance,
        replace: |p, _, _| Box::new(p.clone()),
    },
    Rule {
        name: "F5 residual only without the drafted token",
        accept: acceptance,
        replace: |p, _, x| Box::new(without(p, x)),
    },
    Rule { name: "F8 same token or ratio", accept: two_chances, replace: right_residual },
    Rule {
        name: "F12 ratio upside down",
        accept: |p, q, x| {
            let ratio = acceptance(p, q, x);
            match ratio.numerator.is_zero() {
                true => certain(),
                false => Fraction { numerator: ratio.denominator, denominator: ratio.numerator },
            }
        },
        replace: right_residual,
    },
];

fn heaviest(q: &Dist) -> Token {
    q.support().fold((Token(0), 0), |best, (t, w)| if w > best.1 { (t, w) } else { best }).0
}

fn top_two(q: &Dist) -> Dist {
    let first = heaviest(q);
    let rest = without(q, first);
    let second = heaviest(&rest);
    let keep = |t: Token| {
        if t == first || t == second { q.weight(t) } else { 0 }
    };
    Dist::dense((0..q.vocab()).map(Token::at).map(keep).collect()).expect("two tokens")
}

/// F4, F6, F7: a draft that is not drawn from the law it reports.
pub(crate) fn drafters(table: &TableModel) -> [TableDrafter; 3] {
    let of = |name, propose| TableDrafter { name, table: table.clone(), propose };
    [
        of("F4 arg-max under a softmax q", |q, _, _, _| Some(forge(heaviest(&q), q))),
        of("F6 drawn from the top two, whole q reported", |q, round, offset, noise| {
            let drawn = Proposal::draw(top_two(&q), round, offset, noise);
            Some(forge(drawn.token(), q))
        }),
        of("F7 unlikely draft thrown away", |q, round, offset, noise| {
            let drawn = Proposal::draw(q, round, offset, noise);
            (drawn.q().probability(drawn.token()) >= 0.25).then_some(drawn)
        }),
    ]
}
