//! Mutated inputs for tests of what reads foreign input: whatever it is, the end is a result.
//!
//! A corpus is a directory of inputs, good and bad ones. [`inputs!`] runs a function on each of them, and on mutations
//! of them. The number of mutations is [`MUTATIONS`], or that of `STARLING_FUZZ`. They are the same each time, or those
//! of `STARLING_FUZZ_SEED`. With `cargo bolero test`, the same test is guided by the coverage of the code:
//! docs/security.md has the commands.

mod json;
mod numbers;

use std::path::Path;

pub use bolero;
use bolero::{Driver, TypeGenerator, ValueGenerator};
pub use numbers::seed;

/// The number of mutations of a test unless `STARLING_FUZZ` says otherwise.
pub const MUTATIONS: usize = 1_000;
/// Whether `cargo bolero test` chooses the inputs.
pub const GUIDED: bool = cfg!(fuzzing);
/// The most bytes of a mutation.
const MAX_BYTES: usize = 256 * 1024;
/// The most times that a part is repeated by one mutation.
const MAX_REPEATS: usize = 64;

/// What many formats have in common, and what their readers get wrong.
const WORDS: [&str; 32] = [
    "\0",
    "\n",
    "\r\n",
    "\t",
    " ",
    "\"",
    "'",
    "`",
    "\\",
    "/",
    "..",
    "-",
    ":",
    ": ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    "&a ",
    "*a",
    "!!binary ",
    "|\n",
    "---\n",
    "$(",
    "${",
    "%2e",
    "-1",
    "18446744073709551616",
    "1e309",
    "ſ",
    "\u{feff}",
];

/// Runs a function on the inputs of the corpus `$corpus` of the calling package, and on mutations of them. The function
/// takes the bytes of one input and must not panic.
#[macro_export]
macro_rules! inputs {
    ($corpus:literal, $run:expr) => {{
        let mutations = $crate::Mutated::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/", $corpus));
        let run: fn(&[u8]) = $run;
        mutations.seeds().for_each(run);
        if $crate::GUIDED {
            $crate::bolero::check!()
                .with_generator(mutations)
                .for_each(|input: &Vec<u8>| run(input));
        } else {
            mutations.run($crate::seed(), $crate::mutations(), run);
        }
    }};
}

/// Returns the number of mutations of a test.
#[must_use]
pub fn mutations() -> usize {
    let set = std::env::var("STARLING_FUZZ").ok();
    set.and_then(|count| count.parse().ok()).unwrap_or(MUTATIONS)
}

/// Mutations of the inputs of a corpus.
#[derive(Clone, Debug)]
pub struct Mutated(Vec<Vec<u8>>);

/// A change of an input. Places are positions, modulo the length.
#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Mutation {
    /// Sets a byte.
    Set(u32, u8),
    /// Inserts one of [`WORDS`].
    Insert(u32, u8),
    /// Removes a range.
    Remove(u32, u16),
    /// Repeats a range.
    Repeat(u32, u16, u8),
    /// Inserts a range of another input.
    Splice(u32, u8, u32, u16),
    /// Removes the rest.
    Truncate(u32),
}

impl Mutated {
    /// Reads a corpus.
    ///
    /// # Panics
    /// If the directory cannot be read, or is empty.
    #[must_use]
    #[expect(
        clippy::panic,
        clippy::unwrap_used,
        reason = "for tests: without a corpus, nothing is tested"
    )]
    pub fn of(directory: impl AsRef<Path>) -> Self {
        let directory = directory.as_ref();
        let Ok(entries) = std::fs::read_dir(directory) else {
            panic!("no corpus in {}", directory.display());
        };
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        // The order of a directory is that of its disk.
        paths.sort();
        let seeds: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
        assert!(!seeds.is_empty(), "{} is empty", directory.display());
        Self(seeds)
    }

    /// Returns the inputs of the corpus.
    pub fn seeds(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// Runs a function on `count` mutations. The same seed has the same ones, of which the first are those of a smaller
    /// count. The engine of bolero takes all inputs but one from the operating system, whatever its seed is.
    ///
    /// # Panics
    /// If the function panics. The number and the text of the mutation are printed before.
    pub fn run(&self, seed: u64, count: usize, run: fn(&[u8])) {
        for number in 0..count {
            let input = self.nth(seed, number);
            let named = Named { seed, number, input };
            run(&named.input);
        }
    }

    fn nth(&self, seed: u64, number: usize) -> Vec<u8> {
        let bytes = numbers::bytes(seed, number as u64);
        let options = bolero::generator::bolero_generator::driver::Options::default();
        let mut driver = bolero::generator::bolero_generator::driver::bytes::Driver::new(bytes, &options);
        self.generate(&mut driver).unwrap_or_default()
    }

    fn mutate(&self, input: &mut Vec<u8>, mutation: Mutation) {
        let place = |at: u32, len: usize| at as usize % len.max(1);
        let range = |at: u32, count: u16, len: usize| {
            let from = place(at, len).min(len);
            from..len.min(from + usize::from(count) % 200 + 1)
        };
        let len = input.len();
        match mutation {
            Mutation::Set(at, byte) => {
                if let Some(found) = input.get_mut(place(at, len)) {
                    *found = byte;
                }
            }
            Mutation::Insert(at, word) => {
                let at = place(at, len + 1);
                let word = WORDS
                    .get(usize::from(word) % WORDS.len())
                    .copied()
                    .unwrap_or_default();
                input.splice(at..at, word.bytes());
            }
            Mutation::Remove(at, count) => drop(input.drain(range(at, count, len))),
            Mutation::Repeat(at, count, times) => {
                let range = range(at, count, len);
                let part = input.get(range.clone()).unwrap_or_default();
                let more = part.repeat(usize::from(times) % MAX_REPEATS);
                input.splice(range.end..range.end, more);
            }
            Mutation::Splice(at, seed, from, count) => {
                let seed = self.0.get(usize::from(seed) % self.0.len());
                let part = seed.and_then(|seed| seed.get(range(from, count, seed.len())));
                let at = place(at, len + 1);
                input.splice(at..at, part.unwrap_or_default().iter().copied());
            }
            Mutation::Truncate(at) => input.truncate(place(at, len + 1)),
        }
        input.truncate(MAX_BYTES);
    }
}

impl ValueGenerator for Mutated {
    type Output = Vec<u8>;

    fn generate<D: Driver>(&self, driver: &mut D) -> Option<Vec<u8>> {
        let seed = usize::from(any::<u16>(driver)?);
        // One of eight has nothing in common with the corpus.
        let mut input = match any::<u8>(driver)? % 8 {
            0 => any(driver)?,
            _ => self.0.get(seed % self.0.len()).cloned().unwrap_or_default(),
        };
        let count = any::<u8>(driver)? % 6 + 1;
        if any::<bool>(driver)?
            && let Ok(mut value) = serde_json::from_slice(&input)
        {
            for _ in 0..count {
                json::mutate(&mut value, any(driver)?);
            }
            return Some(value.to_string().into_bytes());
        }
        for _ in 0..count {
            let mutation = any(driver)?;
            self.mutate(&mut input, mutation);
        }
        Some(input)
    }
}

/// A mutation that a test runs on. It is printed if the test panics.
struct Named {
    seed: u64,
    number: usize,
    input: Vec<u8>,
}

impl Drop for Named {
    #[expect(clippy::print_stderr, reason = "for tests: the input of a failure")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, number, input } = self;
            let text = String::from_utf8_lossy(input);
            eprintln!("mutation {number} of STARLING_FUZZ_SEED={seed}: {text:?}");
        }
    }
}

fn any<T: TypeGenerator>(driver: &mut impl Driver) -> Option<T> {
    TypeGenerator::generate(driver)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutated(mutation: Mutation) -> String {
        let all = Mutated(vec![b"0123456789".to_vec(), b"abc".to_vec()]);
        let mut input = all.0[0].clone();
        all.mutate(&mut input, mutation);
        String::from_utf8(input).unwrap()
    }

    #[test]
    fn an_input_is_mutated_at_any_place() {
        for (mutation, expected) in [
            (Mutation::Set(12, b'x'), "01x3456789"),
            (Mutation::Insert(10, 9), "0123456789/"),
            (Mutation::Remove(8, 5), "01234567"),
            (Mutation::Repeat(0, 1, 2), "01010123456789".get(..14).unwrap()),
            (Mutation::Splice(1, 1, 1, 0), "0b123456789"),
            (Mutation::Truncate(3), "012"),
        ] {
            assert_eq!(mutated(mutation), expected, "{mutation:?}");
        }
    }

    #[test]
    fn the_mutations_of_a_seed_are_the_same_each_time_and_differ_from_each_other() {
        let all = Mutated(vec![b"0123456789".to_vec(), b"{\"a\":[1,2]}".to_vec()]);
        let of = |seed| (0..200).map(|number| all.nth(seed, number)).collect::<Vec<_>>();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        let different: std::collections::BTreeSet<_> = of(1).into_iter().collect();
        assert!(different.len() > 150, "{}", different.len());
    }

    #[test]
    fn an_empty_input_is_mutated() {
        let all = Mutated(vec![Vec::new()]);
        for mutation in [
            Mutation::Set(1, 1),
            Mutation::Insert(7, 250),
            Mutation::Remove(9, 9),
            Mutation::Repeat(9, 9, 9),
            Mutation::Splice(1, 2, 3, 4),
            Mutation::Truncate(5),
        ] {
            all.mutate(&mut Vec::new(), mutation);
        }
    }
}
