//! Every wrong sampler is caught by a law check; what keeps the law is not.

use std::collections::BTreeSet;

use draftproof_verification::{
    Report, battery,
    mutants::{HARMLESS, MUTANTS, Trial, try_mutant},
    toy,
};

#[test]
fn every_mutant_is_caught() {
    let mut names = BTreeSet::new();
    let mut survivors = Vec::new();
    for mutant in MUTANTS {
        assert!(names.insert(mutant.name), "{} occurs twice", mutant.name);
        let result = try_mutant(mutant, &Trial::default()).expect("runs");
        println!(
            "{}: {:?} after {:?} texts, power {:?}, distance {:?}",
            result.name, result.caught_by, result.samples, result.power, result.tv
        );
        // Where the predicted power is high, the samples must do what was predicted.
        let sampled = result.power.is_some_and(|power| power > 1.0 - 1e-9);
        assert!(!sampled || result.samples.is_some(), "{}: the power is overstated", result.name);
        // The walk sees every fault that it can see at all.
        assert!(!mutant.enumerable || result.tv > Some(0.0), "{}: the walk is blind", result.name);
        if !result.caught() {
            survivors.push(result.name);
        }
    }
    assert!(names.len() >= 25);
    assert!(survivors.is_empty(), "{survivors:?}");
}

/// At another seed too: that they are caught is no accident of one.
#[test]
fn the_seed_does_not_matter() {
    for mutant in MUTANTS.iter().filter(|mutant| !mutant.enumerable) {
        let trial = Trial { seed: 20_261_130, ..Trial::default() };
        assert!(try_mutant(mutant, &trial).expect("runs").caught(), "{}", mutant.name);
    }
}

#[test]
fn what_keeps_the_law_passes() {
    for mutant in HARMLESS {
        let trial = Trial { samples: 50_000, ..Trial::default() };
        let result = try_mutant(mutant, &trial).expect("runs");
        assert!(!result.caught(), "{} is rejected: {result:?}", mutant.name);
        assert!(!mutant.enumerable || result.tv == Some(0.0));
    }
}

/// Each kind of sampled check has its mutant: the joint law, the accepted tokens, and every place
/// of the block (a fault at the block's end shows at its end).
#[test]
fn each_kind_of_check_fails_on_some_mutant() {
    let failed = |name: &str| {
        let mutant = MUTANTS.iter().find(|mutant| mutant.name == name).expect("a mutant");
        let scene = battery::scene(mutant.scene);
        let checks = toy::check(&scene, Some(mutant.plug), 40_000, 1, &mut ()).expect("runs");
        let mut report = Report { checks, ..Report::default() };
        report.judge();
        let failed = report.checks.iter().filter(|check| !check.passed);
        failed.map(|c| c.name.rsplit('/').next().unwrap_or("").to_owned()).collect::<Vec<_>>()
    };
    let all = failed("F8 same token or ratio");
    assert_eq!(all, ["accepted tokens", "joint law", "place 0", "place 1", "place 2"]);
    let start = failed("first drafted token never checked");
    assert!(start.contains(&"place 0".to_owned()), "{start:?}");
    let end = failed("bonus from the last checked row");
    assert!(!end.contains(&"place 0".to_owned()), "{end:?}");
    assert!(end.contains(&"place 2".to_owned()) && end.contains(&"joint law".to_owned()));
    // The coupled rule has a joint law only.
    assert_eq!(failed("coupled: one race for all positions"), ["joint law"]);
}
