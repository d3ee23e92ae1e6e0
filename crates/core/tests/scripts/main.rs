//! Golden scripts of the rollout engine: the input is a fleet, a strategy and events; the output is what the engine
//! decides and why. The files in this folder also serve as documentation. `STARLING_BLESS=1` writes the output into
//! them; review it before you commit it.
//!
//! Every plan of every script is verified by the independent check.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod script;
mod transcript;

use std::path::PathBuf;

use script::Script;
use starling_core::plan::check::check;
use starling_core::simulate::Happened;
use transcript::Transcript;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scripts")
}

/// Plays a script and returns its transcript.
fn play(script: &Script) -> String {
    let mut world = script.world();
    let mut transcript = Transcript::new(script.start);
    let mut events = script.events.iter().peekable();
    let end = script.end();
    loop {
        while let Some((_, event)) = events.next_if(|(at, _)| *at <= world.now) {
            transcript.note(world.now, event.text());
            event.happen(&mut world);
        }
        let happened = world.settle();
        transcript.take(&world, &happened);
        let last = happened.iter().rev().find_map(|happened| match happened {
            Happened::Planned(plan) => Some(plan),
            _ => None,
        });
        // The last plan at a time starts nothing: it is a plan of the present world.
        if let (Some(last), Some(input)) = (last, world.input()) {
            check(&input, last).unwrap_or_else(|violation| panic!("{}: {violation}\n{last:#?}", script.name));
        }
        let next = [world.next_time(), events.peek().map(|(at, _)| *at)];
        match next.into_iter().flatten().min() {
            Some(at) if at <= end => world.now = at,
            _ => break,
        }
    }
    transcript.end(&world)
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
        let output = play(&Script::read(&name, head));
        if bless {
            std::fs::write(&file, format!("{head}\n---\n{output}")).unwrap();
        } else if output != expected {
            wrong.push(format!("== {name}: expected\n{expected}\n== actual\n{output}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
