//! Distinguishes remote addresses from paths, as kustomize does.
//!
//! kustomize checks *first* whether an entry has the form of a git address and only then whether there is such a
//! directory, so a directory `github.com/org/repo` in the tree does not make that entry local. The checks below match
//! at least all addresses that kustomize accepts: a false positive is an error that names the entry, a false negative
//! would be a fetch.

/// Whether a file entry would be fetched: kustomize does so for any `http:` or `https:` address.
pub(super) fn is_url(entry: &str) -> bool {
    let entry = entry.trim().to_ascii_lowercase();
    entry.starts_with("http:") || entry.starts_with("https:") || entry.contains("://")
}

/// Whether an entry that is not a file of the tree would be cloned.
pub(super) fn is_git(entry: &str) -> bool {
    let entry = entry.trim().to_ascii_lowercase();
    let rest = entry.strip_prefix("git::").unwrap_or(&entry);
    let after_user = rest
        .split_once('@')
        .filter(|(user, _)| is_user(user))
        .map(|(_, host)| host);
    is_url(&entry)
        || rest.len() != entry.len()
        || after_user.is_some()
        || ["github.com/", "github.com:", "gh:"]
            .iter()
            .any(|host| rest.starts_with(host))
        || entry.contains("?ref=")
}

fn is_user(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

/// Returns an entry for messages: truncated, without the user name, password and query of an address.
pub(super) fn shown(entry: &str) -> String {
    /// Longer than any useful path.
    const MAX_SHOWN: usize = 200;
    let mut text = entry.split('?').next().unwrap_or_default().to_owned();
    if let Some(start) = text.find("://").map(|at| at + 3) {
        let host_end = text[start..].find('/').map_or(text.len(), |at| start + at);
        if let Some(at) = text[start..host_end].rfind('@') {
            text.replace_range(start..=start + at, "");
        }
    }
    if text.chars().count() > MAX_SHOWN {
        text = text.chars().take(MAX_SHOWN).chain(['…']).collect();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_notation_of_a_remote_base_is_recognised() {
        for entry in [
            "https://github.com/org/repo",
            "http://example.com/a.yaml",
            "HTTPS://example.com/a.yaml",
            "https:example.com",
            "ssh://git@example.com/org/repo",
            "file:///etc",
            "git::https://example.com/org/repo",
            "GIT::git@example.com:org/repo",
            "git@github.com:org/repo.git",
            "somebody@example.com:org/repo",
            "somebody@example.com/org/repo",
            "github.com/org/repo",
            "GitHub.com/org/repo//path?ref=v1",
            "github.com:org/repo",
            "git::github.com/org/repo",
            "gh:org/repo",
            "example.com/org/repo?ref=main",
            " https://example.com/org/repo",
        ] {
            assert!(is_git(entry), "{entry}");
        }
    }

    #[test]
    fn local_paths_are_local() {
        for entry in [
            "../base",
            "./github.com/org",
            "a.yaml",
            "web@2x",
            "-x@y",
            "deploy/app.git/x",
            "1a@b",
            "a b/c",
            "vendor/github.com/org/repo",
        ] {
            let expected = entry == "web@2x";
            assert_eq!(is_git(entry), expected, "{entry}");
        }
    }

    #[test]
    fn credentials_of_an_address_are_not_shown() {
        let text = shown("https://me:hunter2@example.com/org/repo?token=hunter2");
        assert_eq!(text, "https://example.com/org/repo");
        assert_eq!(shown("https://a@hunter2@example.com"), "https://example.com");
        assert_eq!(shown("../base"), "../base");
    }
}
