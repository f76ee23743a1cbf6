//! A worker's model obeys the laws that a model here obeys, with the same bits.

use std::net::TcpListener;

use draftproof_decode::{LanguageModel, Token, lm::Pass};
use draftproof_model::{
    Model, Place, Role, Runner,
    remote::{Served, serve},
};

use crate::{
    bits::assert_bits,
    laws::{assert_edges, assert_failure, assert_fork},
    support::{Reference, bits, cpu, feed, golden, open},
};

/// Serves a golden model from a thread of its own, and connects to it.
fn there(name: &str) -> Runner {
    let model = Model::open(&golden(name), &cpu()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("remote:ws://{}", listener.local_addr().unwrap());
    let served = Served::new(name.into(), model, "cpu".into(), true);
    std::thread::spawn(move || serve(&listener, vec![served], None, |_| {}));
    let place = Place::open(&place, None).unwrap();
    Model::open(&golden(name), place).unwrap().into_language_model()
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
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("remote:ws://{}", listener.local_addr().unwrap());
    let served = Served::new("small".into(), model, "cpu".into(), true);
    std::thread::spawn(move || serve(&listener, vec![served], None, |_| {}));
    let open = |role| Model::builtin("fable", role, Place::open(&place, None).unwrap());
    let found = open(Role::Draft).unwrap();
    assert_eq!((found.parameters(), found.identity()), (parameters, &identity));
    let error = open(Role::Target).unwrap_err().to_string();
    assert!(error.contains("no model") && error.contains("small"), "{error}");
}

/// A looped model runs there as its files say, and says so here: its law and its costs are the same.
#[test]
fn a_looped_model_is_as_deep_there() {
    let here = Model::open(&golden("ouro"), &cpu()).unwrap();
    let model = Model::open(&golden("ouro"), &cpu()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("remote:ws://{}", listener.local_addr().unwrap());
    let served = Served::new("ouro".into(), model, "cpu".into(), true);
    std::thread::spawn(move || serve(&listener, vec![served], None, |_| {}));
    let place = Place::open(&place, None).unwrap();
    let mut there = Model::open(&golden("ouro"), place).unwrap();
    assert_eq!((there.loops(), there.guidance()), (Some(4), None));
    assert_eq!((there.loops(), there.identity()), (here.loops(), here.identity()));
    assert_eq!(there.bytes_run(), here.bytes_run());
    assert!(here.bytes_run() > 3 * here.parameters());
    for error in [there.set_loops(Some(2), None).err(), there.early_exit(1).err()] {
        let error = error.unwrap().to_string();
        assert!(error.contains("expected a model on this machine"), "{error}");
    }
}
