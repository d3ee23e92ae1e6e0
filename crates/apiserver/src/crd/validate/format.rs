//! The string formats of kube-openapi's `strfmt`.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::sync::LazyLock;

use regex::Regex;

use crate::crd::time;

/// The formats that are regular expressions.
static EXPRESSIONS: LazyLock<Vec<(&'static str, Regex)>> = LazyLock::new(|| {
    [
        ("bsonobjectid", r"^[0-9a-fA-F]{24}$"),
        (
            "uuid",
            r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$",
        ),
        (
            "uuid3",
            r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$",
        ),
        (
            "uuid4",
            r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$",
        ),
        (
            "uuid5",
            r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$",
        ),
        (
            "creditcard",
            r"^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$",
        ),
        ("ssn", r"^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$"),
        ("hexcolor", r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"),
        (
            "rgbcolor",
            r"^rgb\((?:\s*(?:0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,){2}\s*(?:0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*\)$",
        ),
        (
            "byte",
            r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$",
        ),
        (
            "hostname",
            r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$",
        ),
        (
            "mac",
            r"^(?i)([0-9a-f]{2}([:-])[0-9a-f]{2}(?:[:-][0-9a-f]{2}){4}(?:(?:[:-][0-9a-f]{2}){2}|(?:[:-][0-9a-f]{2}){14})?|(?:[0-9a-f]{4}\.){2}[0-9a-f]{4}(?:\.[0-9a-f]{4})?(?:(?:\.[0-9a-f]{4}){6})?)$",
        ),
        (
            "email",
            r#"^(?:[^<>"@,;:\\\[\]()]*<)?\s*(?:[^\s<>"@,;:\\\[\]()]+|"(?:[^"\\]|\\.)*")@[^\s<>"@,;:\\()]+\s*>?$"#,
        ),
        ("k8sshortname", r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"),
        (
            "k8slongname",
            r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        ),
        ("isbn10", r"^(?:[0-9]{9}X|[0-9]{10})$"),
        ("isbn13", r"^(?:[0-9]{13})$"),
    ]
    .into_iter()
    .filter_map(|(name, expression)| Some((name, Regex::new(expression).ok()?)))
    .collect()
});

/// The maximum length of a `k8s-long-name` and of a hostname.
const MAX_NAME_LENGTH: usize = 253;
const LONGEST_HOSTNAME: usize = 255;
const MAX_LABEL_LENGTH: usize = 63;

/// Returns a format name without hyphens, as formats are looked up.
fn without_hyphens(format: &str) -> String {
    format.replace('-', "")
}

/// Returns whether strings of a format are validated.
pub(super) fn is_checked(format: &str) -> bool {
    without_hyphens(format) != "password"
}

pub(super) fn is_valid(format: &str, text: &str) -> bool {
    match without_hyphens(format).as_str() {
        "date" => time::date(text).is_some(),
        "datetime" => is_date_time(text),
        "duration" => time::duration(text).is_some(),
        "uri" => is_request_uri(text),
        "ipv4" => text.contains('.') && address(text).is_some(),
        "ipv6" => text.contains(':') && address(text).is_some(),
        "cidr" => is_cidr(text),
        "hostname" => {
            matches("hostname", text)
                && text.len() <= LONGEST_HOSTNAME
                && text.split('.').all(|label| label.len() <= MAX_LABEL_LENGTH)
        }
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "creditcard" => is_credit_card(text),
        "mac" => matches("mac", text) && !(text.contains(':') && text.contains('-')),
        "k8slongname" => matches("k8slongname", text) && text.len() <= MAX_NAME_LENGTH,
        format => matches(format, text),
    }
}

fn matches(format: &str, text: &str) -> bool {
    EXPRESSIONS
        .iter()
        .find(|(name, _)| *name == format)
        .is_none_or(|(_, expression)| expression.is_match(text))
}

/// Accepts what `strfmt` does: a laxer form than RFC 3339, without leap seconds.
fn is_date_time(text: &str) -> bool {
    static TIME: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(r"^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$").ok()
    });
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else {
        return false;
    };
    let Some(found) = TIME.as_ref().and_then(|expression| expression.captures(time)) else {
        return false;
    };
    time::date(date).is_some() && found[1] <= *"23" && found[2] <= *"59" && found[3] <= *"59"
}

/// Parses an IPv4 or IPv6 address; leading zeros are allowed.
fn address(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return Ipv6Addr::from_str(text).ok().map(IpAddr::V6);
    }
    let octets: Vec<u8> = text
        .split('.')
        .map(|octet| {
            octet
                .bytes()
                .all(|byte| byte.is_ascii_digit())
                .then(|| octet.parse().ok())?
        })
        .collect::<Option<_>>()?;
    <[u8; 4]>::try_from(octets).ok().map(IpAddr::from)
}

fn is_cidr(text: &str) -> bool {
    let Some((network, length)) = text.split_once('/') else {
        return false;
    };
    let most = match address(network) {
        Some(IpAddr::V4(_)) => 32,
        Some(IpAddr::V6(_)) => 128,
        None => return false,
    };
    !length.is_empty()
        && length.bytes().all(|byte| byte.is_ascii_digit())
        && length.parse::<u32>().is_ok_and(|length| length <= most)
}

/// Accepts what a request line allows: an absolute path, or a URL with a scheme.
fn is_request_uri(text: &str) -> bool {
    let printable = text.bytes().all(|byte| byte > b' ' && byte != 0x7f);
    if !printable || text.is_empty() {
        return false;
    }
    let mut bytes = text.bytes();
    let mut escapes = true;
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            escapes &= [bytes.next(), bytes.next()]
                .iter()
                .all(|digit| digit.is_some_and(|digit| digit.is_ascii_hexdigit()));
        }
    }
    if !escapes {
        return false;
    }
    if text.starts_with('/') {
        return true;
    }
    let Some((scheme, rest)) = text.split_once(':') else {
        return false;
    };
    let scheme_is_valid = scheme.starts_with(|char: char| char.is_ascii_alphabetic())
        && scheme
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let host_is_valid = rest.strip_prefix("//").is_none_or(|rest| {
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        !host.contains(['<', '>', '"', '{', '}', '|', '\\', '^', '`'])
    });
    scheme_is_valid && host_is_valid && !rest.is_empty()
}

/// Removes the separators of these numbers.
fn without_separators(text: &str) -> String {
    text.chars()
        .filter(|char| !char.is_whitespace() && *char != '-')
        .collect()
}

fn is_isbn10(text: &str) -> bool {
    let digits = without_separators(text);
    if !matches("isbn10", &digits) {
        return false;
    }
    let sum: u32 = digits
        .chars()
        .zip(1..)
        .map(|(digit, place)| place * digit.to_digit(10).unwrap_or(10))
        .sum();
    sum.is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let digits = without_separators(text);
    if !matches("isbn13", &digits) {
        return false;
    }
    let sum: u32 = digits
        .chars()
        .filter_map(|digit| digit.to_digit(10))
        .enumerate()
        .map(|(place, digit)| digit * if place % 2 == 0 { 1 } else { 3 })
        .sum();
    sum.is_multiple_of(10)
}

fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    if !matches("creditcard", &digits) {
        return false;
    }
    let sum: u32 = digits
        .chars()
        .rev()
        .filter_map(|digit| digit.to_digit(10))
        .enumerate()
        .map(|(place, digit)| match (place % 2, digit * 2) {
            (0, _) => digit,
            (_, double) if double > 9 => double - 9,
            (_, double) => double,
        })
        .sum();
    sum.is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_accept_what_the_library_accepts() {
        for (format, valid, invalid) in [
            ("date", &["2024-02-29"][..], &["2023-02-29", "2024-1-01", ""][..]),
            (
                "date-time",
                &["2024-01-01T23:59:59Z", "2024-01-01t00:00:00.5+01:00"],
                &[
                    "2024-01-01",
                    "2024-01-01T24:00:00Z",
                    "2024-01-01T00:00:60Z",
                    "2024-01-01 00:00:00Z",
                ],
            ),
            (
                "duration",
                &["1h30m", "22 ns", "3 days", "-1.5s"],
                &["", "1", "x"],
            ),
            (
                "uri",
                &["https://h/p?q#f", "/p", "mailto:a@b"],
                &["", "h/p", "a b", "https://h/%zz"],
            ),
            ("email", &["a@b.c", "A <a@b>"], &["a", "a@", "@b", "a b@c"]),
            ("hostname", &["a.example.com", "localhost"], &["-a", "a..b", ""]),
            ("ipv4", &["1.2.3.4", "01.2.3.4"], &["1.2.3", "1.2.3.256", "::1"]),
            ("ipv6", &["::1", "fe80::1", "::ffff:1.2.3.4"], &["1.2.3.4", "::g"]),
            (
                "cidr",
                &["10.0.0.0/8", "::/0"],
                &["10.0.0.0", "10.0.0.0/33", "x/1"],
            ),
            (
                "mac",
                &["01:02:03:04:ab:CD", "0102.0304.0506"],
                &["01:02:03:04:05", "x"],
            ),
            (
                "uuid",
                &["123e4567-e89b-12d3-a456-426614174000"],
                &["123e4567", "g23e4567-e89b-12d3-a456-426614174000"],
            ),
            (
                "uuid4",
                &["123e4567-e89b-42d3-a456-426614174000"],
                &["123e4567-e89b-12d3-a456-426614174000"],
            ),
            ("byte", &["YQ==", "YWJj"], &["", "YQ", "Y!=="]),
            ("isbn", &["0321751043", "978-0321751041"], &["0321751044", "x"]),
            (
                "creditcard",
                &["4111-1111-1111-1111"],
                &["4111-1111-1111-1112", "1"],
            ),
            ("ssn", &["123-45-6789"], &["123-45-678"]),
            ("hexcolor", &["#FFF", "a0b1c2"], &["#FF", "red"]),
            ("rgbcolor", &["rgb(255, 0,10)"], &["rgb(256,0,0)", "255,0,0"]),
            ("k8s-short-name", &["a-b"], &["A", "-a", "a.b"]),
            ("k8s-long-name", &["a-b.c"], &["a..b", "A"]),
            ("bsonobjectid", &["0123456789abcdef01234567"], &["0123"]),
        ] {
            for text in valid {
                assert!(is_valid(format, text), "{format}: {text:?} is one");
            }
            for text in invalid {
                assert!(!is_valid(format, text), "{format}: {text:?} is none");
            }
        }
    }
}
