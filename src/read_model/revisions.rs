//! Short forms of revisions.

use starling_api::EntryRevision;

/// Hex digits of a commit in a short revision.
const DIGITS: usize = 8;
/// The text for a revision that is not known.
const NONE: &str = "-";

/// The short form of a revision, such as `v1.4.2@8d1e2f3a`; `-` if it is empty.
#[must_use]
pub fn short(revision: &str) -> String {
    let (name, commit) = revision.rsplit_once('@').unwrap_or(("", revision));
    let hex = commit.split_once(':').map_or(commit, |(_, hex)| hex);
    let hex: String = hex.chars().take(DIGITS).collect();
    match (name, hex.as_str()) {
        ("", "") => NONE.to_owned(),
        ("", hex) => hex.to_owned(),
        (name, hex) => format!("{name}@{hex}"),
    }
}

/// The short form of the revisions of a release: the first, and how many other revisions the release has.
#[must_use]
pub fn shorts(revisions: &[EntryRevision]) -> String {
    let mut texts: Vec<String> = revisions.iter().map(|entry| short(&entry.revision)).collect();
    texts.dedup();
    match &texts[..] {
        [] => NONE.to_owned(),
        [only] => only.clone(),
        [first, rest @ ..] => format!("{first} +{}", rest.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_has_its_name_and_the_prefix_of_its_commit() {
        for (revision, expected) in [
            ("", "-"),
            ("sha1:8d1e2f3a4b5c", "8d1e2f3a"),
            ("main@sha1:8d1e2f3a4b5c", "main@8d1e2f3a"),
            ("v1.4.2@sha256:00", "v1.4.2@00"),
        ] {
            assert_eq!(short(revision), expected, "{revision}");
        }
    }

    #[test]
    fn equal_revisions_of_a_release_are_one() {
        let of = |texts: &[&str]| {
            let revisions: Vec<EntryRevision> = texts
                .iter()
                .map(|text| EntryRevision {
                    sync: String::new(),
                    revision: (*text).to_owned(),
                })
                .collect();
            shorts(&revisions)
        };
        assert_eq!(of(&[]), "-");
        assert_eq!(of(&["v1@sha1:00", "v1@sha1:00"]), "v1@00");
        assert_eq!(of(&["v1@sha1:00", "v2@sha1:11", "v3@sha1:22"]), "v1@00 +2");
    }
}
