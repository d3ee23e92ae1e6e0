//! What a failed build said, fit to be shown in a status.
//!
//! kustomize quotes what it was given: plugin configurations and scalars between backticks, patches between
//! brackets, literals of generators as they are. Any of it may be a Secret's, so it is taken out.

use std::path::Path;

use super::check::Unshown;

/// What stands for a text that was taken out.
const LEFT_OUT: &str = "…";
/// Shorter texts are not secrets, and taking them out would make the message unreadable.
const MIN_SECRET: usize = 3;

/// Prepares a complaint: one line, without folders of this host and without quoted content.
pub(super) fn shown(stderr: &str, folders: &[&Path], unshown: &Unshown) -> String {
    // What follows is the trace of a crash: pages that help nobody who reads a status.
    let mut text = stderr
        .split("\n\ngoroutine ")
        .next()
        .unwrap_or_default()
        .to_owned();
    let mut secrets: Vec<&str> = unshown
        .0
        .iter()
        .map(|secret| secret.trim())
        .filter(|secret| secret.len() >= MIN_SECRET)
        .collect();
    // The longest first: one may be part of another.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    for secret in secrets {
        text = text.replace(secret, LEFT_OUT);
    }
    text = without_between(&text, "`", "`");
    text = without_between(&text, "patch from [", "]");
    for folder in folders {
        let folder = folder.display().to_string();
        text = text.replace(&format!("{folder}/"), "").replace(&folder, ".");
    }
    let words: Vec<&str> = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect();
    words.join(" ")
}

/// Takes out what is between the first opening and the last closing mark: content may hold the mark itself.
/// Without a closing mark (the text was cut) everything from the opening one on goes.
fn without_between(text: &str, open: &str, close: &str) -> String {
    let Some(start) = text.find(open).map(|at| at + open.len()) else {
        return text.to_owned();
    };
    let end = text[start..].rfind(close).map_or(text.len(), |at| start + at);
    format!("{}{LEFT_OUT}{}", &text[..start], &text[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(stderr: &str) -> String {
        shown(
            stderr,
            &[Path::new("/srv/tree"), Path::new("/tmp/x")],
            &Unshown(vec!["hunter2".to_owned()]),
        )
    }

    #[test]
    fn folders_of_the_host_become_relative() {
        assert_eq!(
            plain("Error: '/srv/tree/apps/a.yaml' is bad\n  in /tmp/x\n"),
            "Error: 'apps/a.yaml' is bad in ."
        );
    }

    #[test]
    fn quoted_content_is_left_out() {
        assert_eq!(
            plain("invalid literal source hunter2, expected key=value"),
            "invalid literal source …, expected key=value"
        );
        assert_eq!(
            plain("cannot unmarshal !!str `s3cret` into int"),
            "cannot unmarshal !!str `…` into int"
        );
        assert_eq!(plain("config: `a: `b` c` failed"), "config: `…` failed");
        assert_eq!(plain("config: `a: b"), "config: `…");
        assert_eq!(
            plain("unable to parse SM or JSON patch from [a: [b]\nc]"),
            "unable to parse SM or JSON patch from […]"
        );
    }

    #[test]
    fn the_trace_of_a_crash_is_left_out() {
        assert_eq!(
            plain("panic: index out of range\n\ngoroutine 1 [running]:\nmain.main()\n"),
            "panic: index out of range"
        );
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        assert_eq!(plain("a\u{1b}[31mb\0c"), "a [31mb c");
    }
}
