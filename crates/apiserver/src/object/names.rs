//! The validation of names and labels, with the texts of the API server.

const DNS_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const DNS_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const DNS_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

/// The rule for the names of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// An RFC 1123 subdomain: most kinds.
    Subdomain,
    /// An RFC 1123 label: Namespaces.
    Label,
    /// An RFC 1035 label: Services.
    Label1035,
    /// A path segment: RBAC kinds and others.
    PathSegment,
}

fn too_long(limit: usize) -> String {
    format!("must be no more than {limit} bytes")
}

fn is_inner(char: char) -> bool {
    matches!(char, 'a'..='z' | '0'..='9' | '-')
}

fn is_edge(char: char) -> bool {
    char.is_ascii_lowercase() || char.is_ascii_digit()
}

fn is_label(text: &str) -> bool {
    text.starts_with(is_edge) && text.ends_with(is_edge) && text.chars().all(is_inner)
}

/// Returns what is wrong with an RFC 1123 label.
pub fn dns_label(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > 63 {
        wrong.push(too_long(63));
    }
    if !is_label(text) {
        wrong.push(if dns_subdomain(text).is_empty() {
            "must not contain dots".to_owned()
        } else {
            DNS_LABEL.to_owned()
        });
    }
    wrong
}

/// Returns what is wrong with an RFC 1123 subdomain.
pub fn dns_subdomain(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > 253 {
        wrong.push(too_long(253));
    }
    if text.is_empty() || !text.split('.').all(is_label) {
        wrong.push(DNS_SUBDOMAIN.to_owned());
    }
    wrong
}

/// Returns what is wrong with an RFC 1035 label, which begins with a letter.
pub fn dns_1035_label(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > 63 {
        wrong.push(too_long(63));
    }
    if !is_label(text) || text.starts_with(|char: char| char.is_ascii_digit()) {
        wrong.push(DNS_1035.to_owned());
    }
    wrong
}

/// Returns what is wrong with a name that is part of a path.
pub fn path_segment(text: &str) -> Vec<String> {
    if matches!(text, "." | "..") {
        return vec![format!("may not be '{text}'")];
    }
    ["/", "%"]
        .iter()
        .filter(|part| text.contains(**part))
        .map(|part| format!("may not contain '{part}'"))
        .collect()
}

fn is_qualified_part(text: &str) -> bool {
    let edge = |char: char| char.is_ascii_alphanumeric();
    text.starts_with(edge)
        && text.ends_with(edge)
        && text
            .chars()
            .all(|char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.'))
}

/// Returns what is wrong with the name of a label or an annotation: `prefix/name` or `name`.
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                wrong.push("prefix part must be non-empty".to_owned());
            } else {
                wrong.extend(
                    dns_subdomain(prefix)
                        .into_iter()
                        .map(|why| format!("prefix part {why}")),
                );
            }
            *name
        }
        _ => {
            wrong.push("a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')".to_owned());
            return wrong;
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        wrong.push(format!("name part {}", too_long(63)));
    }
    if !is_qualified_part(name) {
        wrong.push(QUALIFIED.to_owned());
    }
    wrong
}

/// Returns what is wrong with the value of a label.
pub fn label_value(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > 63 {
        wrong.push(too_long(63));
    }
    if !text.is_empty() && !is_qualified_part(text) {
        wrong.push(LABEL_VALUE.to_owned());
    }
    wrong
}

/// Returns what is wrong with a key of a ConfigMap or a Secret.
pub fn config_key(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > 253 {
        wrong.push(too_long(253));
    }
    let allowed = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
    if text.is_empty() || !text.chars().all(allowed) {
        wrong.push(CONFIG_KEY.to_owned());
    } else if text == "." || text == ".." {
        wrong.push(format!("must not be '{text}'"));
    } else if text.starts_with("..") {
        wrong.push("must not start with '..'".to_owned());
    }
    wrong
}

impl NameRule {
    /// Returns what is wrong with a name; `prefix` says that it is a `generateName`, to which a suffix is appended.
    pub fn check(self, name: &str, prefix: bool) -> Vec<String> {
        // A trailing dash of a prefix is not the end of the name.
        let shown: String = if prefix && name.ends_with('-') && name.len() > 1 {
            format!("{}a", &name[..name.len() - 1])
        } else {
            name.to_owned()
        };
        match self {
            Self::Subdomain => dns_subdomain(&shown),
            Self::Label => dns_label(&shown),
            Self::Label1035 => dns_1035_label(&shown),
            Self::PathSegment => path_segment(&shown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_accepted_and_rejected() {
        for (name, subdomain, label, label1035, path) in [
            ("web", true, true, true, true),
            ("web.v1", true, false, false, true),
            ("1web", true, true, false, true),
            ("Web", false, false, false, true),
            ("web-", false, false, false, true),
            ("a..b", false, false, false, true),
            ("system:node", false, false, false, true),
            ("a/b", false, false, false, false),
            ("..", false, false, false, false),
        ] {
            for (rule, good) in [
                (NameRule::Subdomain, subdomain),
                (NameRule::Label, label),
                (NameRule::Label1035, label1035),
                (NameRule::PathSegment, path),
            ] {
                assert_eq!(rule.check(name, false).is_empty(), good, "{name:?} {rule:?}");
            }
        }
        assert!(NameRule::Subdomain.check("web-", true).is_empty());
        assert_eq!(dns_label(&"a".repeat(64)), ["must be no more than 63 bytes"]);
    }

    #[test]
    fn label_names_and_values() {
        for (name, good) in [
            ("app", true),
            ("app.kubernetes.io/name", true),
            ("/name", false),
            ("a/b/c", false),
            ("UPPER.example/name", false),
            ("-a", false),
            ("", false),
        ] {
            assert_eq!(qualified_name(name).is_empty(), good, "{name:?}");
        }
        for (value, good) in [("", true), ("a b", false), ("v1.2", true), ("_a", false)] {
            assert_eq!(label_value(value).is_empty(), good, "{value:?}");
        }
    }
}
