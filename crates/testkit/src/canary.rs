//! Values that must not be seen, and finding them again however they were written down.
//!
//! A program that leaks a secret seldom leaks it as it is: it is quoted in JSON, printed as bytes, put into a URL,
//! or stored base64 in the middle of something else. A search for the plain text finds none of that.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// A value that must not be seen.
#[derive(Clone, Debug)]
pub struct Canary {
    /// What it is, for the message of a failed test.
    pub name: &'static str,
    /// The value.
    pub value: String,
    needles: Vec<(&'static str, Vec<u8>)>,
}

/// Where a canary was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// [`Canary::name`].
    pub canary: &'static str,
    /// How it was written.
    pub encoding: &'static str,
    /// Where.
    pub place: String,
    /// What stands before it, to find out who wrote it.
    pub before: String,
}

impl Canary {
    /// A value like no other: letters and digits, so that any protocol takes it.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos());
        let unique = now ^ u128::from(std::process::id()) << 64;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self::of(name, format!("cAnArY{unique:032x}{count:04x}ZqX"))
    }

    /// A given value.
    #[must_use]
    pub fn of(name: &'static str, value: String) -> Self {
        let needles = needles(value.as_bytes());
        Self { name, value, needles }
    }

    /// How many encodings are looked for.
    #[must_use]
    pub fn encodings(&self) -> usize {
        let mut names: Vec<_> = self.needles.iter().map(|(name, _)| *name).collect();
        names.dedup();
        names.len()
    }

    /// The first encoding in which the value stands in `haystack`, and where.
    #[must_use]
    pub fn find(&self, haystack: &[u8]) -> Option<(&'static str, usize)> {
        let mut found = self.needles.iter();
        found.find_map(|(encoding, needle)| position(haystack, needle).map(|at| (*encoding, at)))
    }
}

/// All sightings of canaries in one place.
#[must_use]
pub fn sightings(canaries: &[&Canary], place: &str, haystack: &[u8]) -> Vec<Sighting> {
    let seen = canaries.iter().filter_map(|canary| {
        canary.find(haystack).map(|(encoding, at)| Sighting {
            canary: canary.name,
            encoding,
            place: place.to_owned(),
            before: String::from_utf8_lossy(&haystack[at.saturating_sub(300)..at]).into_owned(),
        })
    });
    seen.collect()
}

/// All sightings in the files below a folder. A file that goes away while it is read is one that is not there.
#[must_use]
pub fn sightings_below(canaries: &[&Canary], folder: &Path) -> Vec<Sighting> {
    let mut seen = Vec::new();
    let mut todo: Vec<PathBuf> = vec![folder.to_owned()];
    while let Some(path) = todo.pop() {
        let Ok(meta) = std::fs::symlink_metadata(&path) else {
            continue;
        };
        if meta.is_dir() {
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
            todo.extend(entries.map(|entry| entry.path()));
        } else if meta.is_file()
            && let Ok(bytes) = std::fs::read(&path)
        {
            seen.extend(sightings(canaries, &path.display().to_string(), &bytes));
        }
    }
    seen
}

fn position(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let first = needle.first()?;
    let mut from = 0;
    while let Some(at) = haystack[from..].iter().position(|byte| byte == first) {
        if haystack[from + at..].starts_with(needle) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

/// What the value looks like in each encoding. One that depends on what stands before it has several forms.
fn needles(value: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let text = String::from_utf8_lossy(value);
    let each = |write: &dyn Fn(u8) -> String| {
        let text: String = value.iter().map(|byte| write(*byte)).collect();
        text.into_bytes()
    };
    let mut all = vec![
        ("plain", value.to_vec()),
        ("lower case", text.to_lowercase().into_bytes()),
        ("upper case", text.to_uppercase().into_bytes()),
        ("reversed", value.iter().rev().copied().collect()),
        ("hex", hex::encode(value).into_bytes()),
        ("HEX", hex::encode_upper(value).into_bytes()),
        ("percent", each(&|byte| format!("%{byte:02X}"))),
        ("JSON \\u", each(&|byte| format!("\\u{byte:04x}"))),
        ("\\x", each(&|byte| format!("\\x{byte:02x}"))),
        ("HTML", each(&|byte| format!("&#{byte};"))),
        ("list of bytes", list_of_bytes(value)),
        ("UTF-16 LE", value.iter().flat_map(|byte| [*byte, 0]).collect()),
        ("UTF-16 BE", value.iter().flat_map(|byte| [0, *byte]).collect()),
    ];
    all.extend(base64_forms(value).into_iter().map(|form| ("base64", form)));
    // Twice: the `data` of a Secret inside something that is itself encoded.
    let twice = base64_forms(value)
        .into_iter()
        .flat_map(|form| base64_forms(&form))
        .map(|form| ("base64 twice", form));
    all.extend(twice);
    all
}

fn list_of_bytes(value: &[u8]) -> Vec<u8> {
    let numbers: Vec<String> = value.iter().map(u8::to_string).collect();
    numbers.join(", ").into_bytes()
}

/// Base64 of the value at each of the three places in a group, in both alphabets, without the characters at either
/// end that depend on the neighbours.
fn base64_forms(value: &[u8]) -> Vec<Vec<u8>> {
    let mut forms = Vec::new();
    for before in 0..3 {
        let padded: Vec<u8> = std::iter::repeat_n(0, before)
            .chain(value.iter().copied())
            .collect();
        for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
            let text = engine.encode(&padded);
            let (skip, whole) = ((before * 8).div_ceil(6), padded.len() * 8 / 6);
            let form = text.as_bytes()[skip..whole.min(text.len())].to_vec();
            if !forms.contains(&form) {
                forms.push(form);
            }
        }
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(haystack: impl AsRef<[u8]>) -> Option<&'static str> {
        let canary = Canary::of("test", "cAnArY-0123/+x".into());
        canary.find(haystack.as_ref()).map(|(encoding, _)| encoding)
    }

    #[test]
    fn a_value_is_found_in_every_encoding_and_in_the_middle_of_others() {
        let value = b"cAnArY-0123/+x";
        assert!(Canary::new("test").encodings() >= 12);
        for (text, encoding) in [
            ("token=cAnArY-0123/+x!".to_owned(), "plain"),
            ("CANARY-0123/+X".to_owned(), "upper case"),
            ("canary-0123/+x".to_owned(), "lower case"),
            ("x+/3210-YrAnAc".to_owned(), "reversed"),
            (format!("0x{}", hex::encode(value)), "hex"),
            (hex::encode_upper(value), "HEX"),
            (format!("{value:?}"), "list of bytes"),
            ("%63%41%6E%41%72%59%2D%30%31%32%33%2F%2B%78".to_owned(), "percent"),
            (
                r"\x63\x41\x6e\x41\x72\x59\x2d\x30\x31\x32\x33\x2f\x2b\x78".to_owned(),
                "\\x",
            ),
        ] {
            assert_eq!(seen(&text), Some(encoding), "{text}");
        }
        for before in ["", "a", "ab", "abc", "abcd"] {
            let whole = format!("{before}cAnArY-0123/+x and more");
            for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
                let once = engine.encode(&whole);
                assert_eq!(seen(&once), Some("base64"), "{before}");
                assert_eq!(
                    seen(STANDARD_NO_PAD.encode(format!("{before}{once}!"))),
                    Some("base64 twice"),
                    "{before}"
                );
            }
        }
        let wide: Vec<u8> = value.iter().flat_map(|byte| [*byte, 0]).collect();
        assert_eq!(seen(wide), Some("UTF-16 LE"));
        assert_eq!(seen("cAnArY-0124/+x and nothing else"), None);
        assert_eq!(seen(""), None);
    }

    #[test]
    fn files_are_searched_wherever_they_lie() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let canary = Canary::new("test");
        std::fs::create_dir_all(folder.path().join("a/b"))?;
        std::fs::write(folder.path().join("a/b/c"), hex::encode(&canary.value))?;
        std::fs::write(folder.path().join("a/d"), "nothing")?;
        let seen = sightings_below(&[&canary], folder.path());
        assert_eq!(seen.len(), 1, "{seen:?}");
        assert_eq!(
            (seen[0].encoding, seen[0].place.ends_with("a/b/c")),
            ("hex", true)
        );
        Ok(())
    }
}
