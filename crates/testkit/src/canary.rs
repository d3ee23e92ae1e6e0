//! Secret test values, and a search for them in any encoding.
//!
//! A leaked secret is rarely plain text: it is quoted in JSON, printed as bytes, part of a URL, or encoded in base64
//! together with other data. A search for the plain text finds none of these forms.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// A value that must not leak.
#[derive(Clone, Debug)]
pub struct Canary {
    /// The name in the message of a failed test.
    pub name: &'static str,
    /// The value.
    pub value: String,
    needles: Vec<(&'static str, Vec<u8>)>,
}

/// Where a canary was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanaryMatch {
    /// [`Canary::name`].
    pub canary: &'static str,
    /// The encoding of the value.
    pub encoding: &'static str,
    /// The file or other place.
    pub place: String,
    /// The preceding text, to determine who wrote it.
    pub before: String,
}

impl Canary {
    /// Creates a unique value of letters and digits, which any protocol accepts.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos());
        let unique = now ^ u128::from(std::process::id()) << 64;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self::of(name, format!("cAnArY{unique:032x}{count:04x}ZqX"))
    }

    /// Creates a canary with a given value.
    #[must_use]
    pub fn of(name: &'static str, value: String) -> Self {
        let needles = needles(value.as_bytes());
        Self { name, value, needles }
    }

    /// The number of encodings that are searched.
    #[must_use]
    pub fn encodings(&self) -> usize {
        let mut names: Vec<_> = self.needles.iter().map(|(name, _)| *name).collect();
        names.dedup();
        names.len()
    }

    /// Returns the first encoding of the value in `haystack`, and its position.
    #[must_use]
    pub fn find(&self, haystack: &[u8]) -> Option<(&'static str, usize)> {
        let mut found = self.needles.iter();
        found.find_map(|(encoding, needle)| position(haystack, needle).map(|at| (*encoding, at)))
    }
}

/// Returns all canaries in one place.
#[must_use]
pub fn canary_matches(canaries: &[&Canary], place: &str, haystack: &[u8]) -> Vec<CanaryMatch> {
    let found_encoding = canaries.iter().filter_map(|canary| {
        canary.find(haystack).map(|(encoding, at)| CanaryMatch {
            canary: canary.name,
            encoding,
            place: place.to_owned(),
            before: String::from_utf8_lossy(&haystack[at.saturating_sub(300)..at]).into_owned(),
        })
    });
    found_encoding.collect()
}

/// Returns all canaries in the files below a directory. Files that disappear during the search are skipped.
#[must_use]
pub fn canary_matches_in_directory(canaries: &[&Canary], directory: &Path) -> Vec<CanaryMatch> {
    let mut found_encoding = Vec::new();
    let mut todo: Vec<PathBuf> = vec![directory.to_owned()];
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
            found_encoding.extend(canary_matches(canaries, &path.display().to_string(), &bytes));
        }
    }
    found_encoding
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

/// Returns the value in each encoding. An encoding that depends on the preceding bytes has several forms.
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
    // Encoded twice, such as the `data` of a Secret in another encoded value.
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

/// Returns the base64 forms of the value at each of the three offsets in a group, in both alphabets, without the
/// characters at both ends that depend on adjacent bytes.
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

    fn found_encoding(haystack: impl AsRef<[u8]>) -> Option<&'static str> {
        let canary = Canary::of("test", "cAnArY-0123/+x".into());
        canary.find(haystack.as_ref()).map(|(encoding, _)| encoding)
    }

    #[test]
    fn a_value_is_found_in_every_encoding_and_inside_other_text() {
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
            assert_eq!(found_encoding(&text), Some(encoding), "{text}");
        }
        for before in ["", "a", "ab", "abc", "abcd"] {
            let whole = format!("{before}cAnArY-0123/+x and more");
            for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
                let once = engine.encode(&whole);
                assert_eq!(found_encoding(&once), Some("base64"), "{before}");
                assert_eq!(
                    found_encoding(STANDARD_NO_PAD.encode(format!("{before}{once}!"))),
                    Some("base64 twice"),
                    "{before}"
                );
            }
        }
        let wide: Vec<u8> = value.iter().flat_map(|byte| [*byte, 0]).collect();
        assert_eq!(found_encoding(wide), Some("UTF-16 LE"));
        assert_eq!(found_encoding("cAnArY-0124/+x and nothing else"), None);
        assert_eq!(found_encoding(""), None);
    }

    #[test]
    fn files_in_subdirectories_are_searched() -> anyhow::Result<()> {
        let directory = tempfile::tempdir()?;
        let canary = Canary::new("test");
        std::fs::create_dir_all(directory.path().join("a/b"))?;
        std::fs::write(directory.path().join("a/b/c"), hex::encode(&canary.value))?;
        std::fs::write(directory.path().join("a/d"), "nothing")?;
        let found_encoding = canary_matches_in_directory(&[&canary], directory.path());
        assert_eq!(found_encoding.len(), 1, "{found_encoding:?}");
        assert_eq!(
            (
                found_encoding[0].encoding,
                found_encoding[0].place.ends_with("a/b/c")
            ),
            ("hex", true)
        );
        Ok(())
    }
}
