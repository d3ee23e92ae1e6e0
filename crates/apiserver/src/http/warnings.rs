//! `Warning` headers: each text once, and all of them shortened if they are too long together.

use hyper::Response;
use hyper::header::{HeaderValue, WARNING};

use super::body::Body;

/// The characters of all warnings, above which each is shortened; of Kubernetes.
const ALL: usize = 4 * 1024;
/// The characters of a warning that is shortened.
const ONE: usize = 256;

/// The warnings of a response so far.
#[derive(Clone, Default)]
struct Warned(Vec<String>);

/// Adds warnings to a response.
pub(super) fn add_warnings(response: &mut Response<Body>, warnings: &[String]) {
    let Warned(before) = response.extensions_mut().remove().unwrap_or_default();
    write(response, before.iter().chain(warnings));
}

/// Adds warnings to a response before those that it has.
pub(super) fn prepend_warnings(response: &mut Response<Body>, warnings: &[String]) {
    let Warned(before) = response.extensions_mut().remove().unwrap_or_default();
    write(response, warnings.iter().chain(&before));
}

fn write<'a>(response: &mut Response<Body>, warnings: impl Iterator<Item = &'a String>) {
    let mut all: Vec<String> = Vec::new();
    for warning in warnings {
        // As in Kubernetes, which has no form for control characters in a header.
        if !warning.is_empty() && !warning.contains(char::is_control) && !all.contains(warning) {
            all.push(warning.clone());
        }
    }
    response.headers_mut().remove(WARNING);
    for text in fitting(&all) {
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            response.headers_mut().append(WARNING, value);
        }
    }
    if !all.is_empty() {
        response.extensions_mut().insert(Warned(all));
    }
}

/// Returns the warnings as they are sent.
fn fitting(all: &[String]) -> Vec<String> {
    let length = |text: &str| text.chars().count();
    if all.iter().map(|text| length(text)).sum::<usize>() <= ALL {
        return all.to_vec();
    }
    let mut written = 0;
    all.iter()
        .map(|text| text.chars().take(ONE).collect::<String>())
        .take_while(|text| {
            let is_room = written < ALL;
            written += length(text);
            is_room
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{ALL, ONE, fitting};

    #[test]
    fn long_warnings_are_shortened_together() {
        let short = vec!["a".repeat(ONE * 2), "b".to_owned()];
        assert_eq!(fitting(&short), short);
        let long: Vec<String> = (0..40).map(|at| format!("{at} {}", "c".repeat(ONE))).collect();
        let sent = fitting(&long);
        assert_eq!(sent.len(), ALL / ONE);
        assert!(sent.iter().all(|text| text.chars().count() == ONE));
    }
}
