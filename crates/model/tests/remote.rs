//! A worker's model obeys the laws that a model here obeys, with the same bits.

use std::net::TcpListener;

use draftproof_decode::{LanguageModel, Token, lm::Pass};
use draftproof_model::{
    InitialState, Model, Place, Role, Runner,
    remote::{Served, serve},
};

use crate::{
    bits::assert_bits,
    laws::{assert_edges, assert_failure, assert_fork},
    support::{Reference, bits, cpu, feed, golden, open},
};

/// Serves a model from a thread of its own.
fn place_of(name: &str, model: Model) -> Place {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("remote:ws://{}", listener.local_addr().unwrap());
    let served = Served::new(name.into(), model, "cpu".into(), true);
    std::thread::spawn(move || serve(&listener, vec![served], None, |_| {}));
    Place::open(&place, None).unwrap()
}

/// Serves a golden model from a thread of its own.
fn golden_place(name: &str) -> Place {
    place_of(name, Model::open(&golden(name), &cpu()).unwrap())
}

/// A golden model of a worker.
fn there(name: &str) -> Runner {
    Model::open(&golden(name), golden_place(name)).unwrap().into_language_model()
}

#[test]
fn the_laws_hold_there() {
    for name in ["llama", "gemma3"] {
        assert_fork(&mut there(name), name);
        let text: Vec<Token> = Reference::of(name).ids("input_ids").repeat(2);
        assert_bits(&mut there(name), &text, name);
    }
    assert_failure(&mut there("llama"));
    assert_edges(&mut there("llama"));
}

/// What is cut, forked and closed between passes arrives in order with the next one.
#[test]
fn rows_are_those_of_the_same_model_here() {
    let ids = Reference::of("llama").ids("input_ids");
    let (mut here, mut there) = (open("llama"), there("llama"));
    let schedule = |model: &mut Runner| {
        let mut found = Vec::new();
        let [a, b] = [(); 2].map(|()| model.open().unwrap());
        found.push(bits(&feed(model, a, &ids[..9])));
        model.truncate(a, 7).unwrap();
        model.truncate(a, 4).unwrap();
        let c = model.fork(a).unwrap();
        model.truncate(a, 2).unwrap();
        model.close(b);
        let d = model.fork(c).unwrap();
        model.close(c);
        let batch = [
            Pass { sequence: a, tokens: &ids[2..5], rows: 2 },
            Pass { sequence: d, tokens: &ids[4..11], rows: 7 },
        ];
        found.extend(model.forward(&batch).unwrap().iter().map(bits));
        assert_eq!((model.len(a).unwrap(), model.len(d).unwrap()), (5, 11));
        found
    };
    assert_eq!(schedule(&mut there), schedule(&mut here));
    // A vocabulary cut on this side only.
    there.limit_vocab(100);
    here.limit_vocab(100);
    let rows = |model: &mut Runner| {
        let sequence = model.open().unwrap();
        bits(&feed(model, sequence, &[Token(3), Token(99), Token(0)]))
    };
    assert_eq!(rows(&mut there), rows(&mut here));
    assert_eq!(there.vocab(), 100);
    let sequence = there.open().unwrap();
    let unknown = Pass { sequence, tokens: &[Token(100)], rows: 1 };
    assert!(there.forward(&[unknown]).is_err(), "an id that was cut off");
}

#[test]
fn a_model_of_the_program_is_known_by_its_files() {
    let model = Model::builtin("fable", Role::Draft, &cpu()).unwrap();
    let parameters = model.parameters();
    let identity = model.identity().clone();
    let place = place_of("small", model);
    let open = |role| Model::builtin("fable", role, place.clone());
    let found = open(Role::Draft).unwrap();
    assert_eq!((found.parameters(), found.identity()), (parameters, &identity));
    let error = open(Role::Target).unwrap_err().to_string();
    assert!(error.contains("no model") && error.contains("small"), "{error}");
}

/// A looped model runs there as its files say, and says so here: its law and its costs are the same.
#[test]
fn a_looped_model_is_as_deep_there() {
    let here = Model::open(&golden("ouro"), &cpu()).unwrap();
    let mut there = Model::open(&golden("ouro"), golden_place("ouro")).unwrap();
    assert_eq!((there.loops(), there.guidance()), (Some(4), None));
    assert_eq!((there.loops(), there.identity()), (here.loops(), here.identity()));
    assert_eq!(there.bytes_run(), here.bytes_run());
    assert!(here.bytes_run() > 3 * here.parameters());
    for error in [there.set_loops(Some(2), None).err(), there.early_exit(1).err()] {
        let error = error.unwrap().to_string();
        assert!(error.contains("expected a model on this machine"), "{error}");
    }
}

/// Two clients of one worker begin with different noise, a third with zeros, all at once; each has the
/// rows that it would have here.
#[test]
fn initial_states_travel() {
    let states = [InitialState::Zeros, InitialState::Noise(7), InitialState::Noise(u64::MAX)];
    for name in ["huginn", "parcae"] {
        let ids = Reference::of(name).ids("input_ids");
        let place = golden_place(name);
        let mut rows = [Place::from(&cpu()), place.clone()].map(|place| {
            let mut models = states.map(|state| {
                let mut model = Model::open(&golden(name), place.clone()).unwrap();
                // Under the wrong setting, and closed by the right one.
                let before = model.language_model().open().unwrap();
                model.set_initial_state(state).unwrap();
                assert!(model.language_model().len(before).is_err());
                assert_eq!(model.initial_state(), Some(state));
                model.into_language_model()
            });
            let sequences = models.each_mut().map(|model| model.open().unwrap());
            let mut found: [Vec<u32>; 3] = Default::default();
            for range in [0..9, 9..10, 10..24] {
                for (i, model) in models.iter_mut().enumerate() {
                    found[i].extend(bits(&feed(model, sequences[i], &ids[range.clone()])));
                }
            }
            let fork = models[1].fork(sequences[1]).unwrap();
            models[1].truncate(fork, 3).unwrap();
            assert_eq!(bits(&feed(&mut models[1], fork, &ids[3..])), found[1][3 * 320..]);
            found
        });
        assert!(rows[0] == rows[1], "{name}");
        let different = &mut rows[0];
        different.sort();
        assert!(different[0] != different[1] && different[1] != different[2], "{name}");
    }
    let mut llama = Model::open(&golden("llama"), golden_place("llama")).unwrap();
    let message = llama.set_initial_state(InitialState::Noise(7)).unwrap_err().to_string();
    assert!(message.contains("initial state: expected a looped transformer"), "{message}");
    assert_eq!(llama.initial_state(), None);
}
