//! The validation of names, with the texts of the API server.

use thiserror::Error;

/// The maximum length of a label and of a subdomain.
const MAX_LABEL_LENGTH: usize = 63;
const LONGEST_SUBDOMAIN: usize = 253;

/// Why a name is invalid.
#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum NameError {
    #[error("must be no more than {most} characters")]
    Length { most: usize },
    #[error("{0}")]
    Form(Form),
    /// The name is too long and of the wrong form.
    #[error("must be no more than {most} characters,{form}")]
    LengthAndForm { most: usize, form: Form },
}

/// The form that a name must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum Form {
    #[error(
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
         character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation \
         is '[a-z]([-a-z0-9]*[a-z0-9])?')"
    )]
    Dns1035Label,
    #[error(
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start \
         and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
    )]
    Dns1123Subdomain,
}

/// Checks that a name is an RFC 1035 label.
pub(super) fn dns_1035_label(text: &str) -> Result<(), NameError> {
    let fits = text.starts_with(|char: char| char.is_ascii_lowercase()) && is_label(text);
    check(text, MAX_LABEL_LENGTH, fits, Form::Dns1035Label)
}

/// Checks that a name is an RFC 1123 subdomain.
pub(super) fn dns_1123_subdomain(text: &str) -> Result<(), NameError> {
    let fits = text.split('.').all(is_label);
    check(text, LONGEST_SUBDOMAIN, fits, Form::Dns1123Subdomain)
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().copied().is_some_and(inner)
        && bytes.last().copied().is_some_and(inner)
        && bytes.iter().all(|byte| inner(*byte) || *byte == b'-')
}

fn check(text: &str, most: usize, fits: bool, form: Form) -> Result<(), NameError> {
    match (text.len() <= most, fits) {
        (true, true) => Ok(()),
        (true, false) => Err(NameError::Form(form)),
        (false, true) => Err(NameError::Length { most }),
        (false, false) => Err(NameError::LengthAndForm { most, form }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_name_is_reported_with_all_that_is_wrong() {
        assert_eq!(dns_1035_label("web-1"), Ok(()));
        assert_eq!(dns_1123_subdomain("1.example.com"), Ok(()));
        let too_long = dns_1035_label(&"a".repeat(64)).unwrap_err().to_string();
        assert_eq!(too_long, "must be no more than 63 characters");
        let form = dns_1035_label("1").unwrap_err().to_string();
        assert!(form.starts_with("a DNS-1035 label must consist of"), "{form}");
        let both = dns_1035_label(&"1".repeat(64)).unwrap_err().to_string();
        assert_eq!(both, format!("{too_long},{form}"));
        let form = dns_1123_subdomain("a..b").unwrap_err().to_string();
        assert!(
            form.ends_with(r"is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"),
            "{form}"
        );
    }
}
