//! The validation of names, with the texts of the API server.

/// The maximum length of a label and of a subdomain.
const MAX_LABEL_LENGTH: usize = 63;
const LONGEST_SUBDOMAIN: usize = 253;

/// Returns what is wrong with an RFC 1035 label.
pub(super) fn dns_1035_label(text: &str) -> Option<String> {
    let fits = text.starts_with(|char: char| char.is_ascii_lowercase()) && is_label(text);
    problems(
        text,
        MAX_LABEL_LENGTH,
        fits,
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
         character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation \
         is '[a-z]([-a-z0-9]*[a-z0-9])?')",
    )
}

/// Returns what is wrong with an RFC 1123 subdomain.
pub(super) fn dns_1123_subdomain(text: &str) -> Option<String> {
    problems(
        text,
        LONGEST_SUBDOMAIN,
        text.split('.').all(is_label),
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start \
         and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
    )
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().copied().is_some_and(inner)
        && bytes.last().copied().is_some_and(inner)
        && bytes.iter().all(|byte| inner(*byte) || *byte == b'-')
}

fn problems(text: &str, longest: usize, fits: bool, shape: &str) -> Option<String> {
    let mut found = Vec::new();
    if text.len() > longest {
        let characters = if longest == 1 { "character" } else { "characters" };
        found.push(format!("must be no more than {longest} {characters}"));
    }
    if !fits {
        found.push(shape.to_owned());
    }
    (!found.is_empty()).then(|| found.join(","))
}
