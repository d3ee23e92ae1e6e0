//! Golden scripts of the rollout engine: a fleet, a strategy and what happens go in, what the engine decides and why comes
//! out. The files beside this one are read as documentation; `STARLING_BLESS=1` writes what comes out into them, to be
//! read before it is kept.
//!
//! Every plan of every script is held against the independent checker.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod script;
mod tell;

use std::path::PathBuf;

use script::Script;
use starling_core::plan::check::check;
use starling_core::simulate::Happened;
use tell::Teller;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scripts")
}

/// Plays a script and returns what is told.
fn play(script: &Script) -> String {
    let mut world = script.world();
    let mut teller = Teller::new(script.start);
    let mut events = script.events.iter().peekable();
    let end = script.end();
    loop {
        while let Some((_, event)) = events.next_if(|(at, _)| *at <= world.now) {
            teller.note(world.now, event.text());
            event.happen(&mut world);
        }
        let happened = world.settle();
        teller.take(&world, &happened);
        let last = happened.iter().rev().find_map(|happened| match happened {
            Happened::Planned(plan) => Some(plan),
            _ => None,
        });
        // The last plan of a moment starts nothing: it is about the world as it is.
        if let (Some(last), Some(input)) = (last, world.input()) {
            check(&input, last).unwrap_or_else(|violation| panic!("{}: {violation}\n{last:#?}", script.name));
        }
        let next = [world.next_time(), events.peek().map(|(at, _)| *at)];
        match next.into_iter().flatten().min() {
            Some(at) if at <= end => world.now = at,
            _ => break,
        }
    }
    teller.end(&world)
}

#[test]
fn scripts_are_played_as_written() {
    let bless = std::env::var_os("STARLING_BLESS").is_some();
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    files.sort();
    assert!(files.len() >= 25, "{} scripts", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let (head, expected) = text.split_once("\n---\n").unwrap_or((text.trim_end(), ""));
        let name = file.file_stem().unwrap().to_string_lossy();
        let told = play(&Script::read(&name, head));
        if bless {
            std::fs::write(&file, format!("{head}\n---\n{told}")).unwrap();
        } else if told != expected {
            wrong.push(format!("== {name}: expected\n{expected}\n== and it was\n{told}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
