//! Label selectors and field selectors.

use serde_json::Value;

use super::Head;

/// A label selector, as in `?labelSelector=`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    name: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
    Above(i64),
    Below(i64),
}

impl LabelSelector {
    /// Parses a selector.
    ///
    /// # Errors
    /// The text of the API server's response.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut reader = Reader::new(text);
        let mut requirements = Vec::new();
        loop {
            match reader.peek() {
                "" => return Ok(Self(requirements)),
                "," if requirements.is_empty() => {
                    return Err("found ',', expected: !, identifier, or 'end of string'".to_owned());
                }
                _ => requirements.push(reader.requirement()?),
            }
            match reader.next().as_str() {
                "" => return Ok(Self(requirements)),
                "," if matches!(reader.peek(), "" | "," | ")") => {
                    return Err(format!(
                        "found '{}', expected: identifier after ','",
                        reader.peek()
                    ));
                }
                "," => {}
                other => return Err(format!("found '{other}', expected: ',' or 'end of string'")),
            }
        }
    }

    /// Returns whether the selector matches every object.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the selector matches an object.
    pub fn matches(&self, head: &Head) -> bool {
        self.0.iter().all(|requirement| {
            let value = head.label(&requirement.name);
            match &requirement.test {
                Test::Exists => value.is_some(),
                Test::Absent => value.is_none(),
                Test::In(values) => value.is_some_and(|value| values.iter().any(|one| one == value)),
                Test::NotIn(values) => !value.is_some_and(|value| values.iter().any(|one| one == value)),
                Test::Above(limit) => number(value).is_some_and(|value| value > *limit),
                Test::Below(limit) => number(value).is_some_and(|value| value < *limit),
            }
        })
    }
}

fn number(value: Option<&str>) -> Option<i64> {
    value?.parse().ok()
}

/// The lexer of a label selector.
struct Reader<'a> {
    tokens: Vec<&'a str>,
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        let mut tokens = Vec::new();
        let mut rest = text.trim_start();
        let is_sign = |char: char| matches!(char, '=' | '!' | '(' | ')' | ',' | '<' | '>');
        while !rest.is_empty() {
            let length = if rest.starts_with("==") || rest.starts_with("!=") {
                2
            } else if rest.starts_with(is_sign) {
                1
            } else {
                rest.find(|char: char| is_sign(char) || char.is_whitespace())
                    .unwrap_or(rest.len())
            };
            tokens.push(&rest[..length]);
            rest = rest[length..].trim_start();
        }
        Self { tokens, at: 0 }
    }

    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).copied().unwrap_or_default()
    }

    fn next(&mut self) -> String {
        let token = self.peek();
        self.at += 1;
        token.to_owned()
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = self.peek() == "!";
        if absent {
            self.at += 1;
        }
        if !absent && self.peek().starts_with(|char: char| "=(),<>".contains(char)) {
            return Err(format!(
                "found '{}', expected: !, identifier, or 'end of string'",
                self.peek()
            ));
        }
        let name = self.next();
        if name.is_empty() || name.starts_with(|char: char| "=!(),<>".contains(char)) {
            return Err(format!(
                "unable to parse requirement: found '{name}', expected: identifier"
            ));
        }
        let wrong = super::names::qualified_name(&name);
        if !wrong.is_empty() {
            return Err(format!(
                "unable to parse requirement: <nil>: Invalid value: {name:?}: {}",
                wrong.join("; ")
            ));
        }
        if absent {
            return Ok(Requirement {
                name,
                test: Test::Absent,
            });
        }
        let test = match self.peek() {
            "" | "," => Test::Exists,
            "=" | "==" => {
                self.at += 1;
                Test::In(vec![self.value()?])
            }
            "!=" => {
                self.at += 1;
                Test::NotIn(vec![self.value()?])
            }
            "in" => {
                self.at += 1;
                Test::In(self.values()?)
            }
            "notin" => {
                self.at += 1;
                Test::NotIn(self.values()?)
            }
            sign @ (">" | "<") => {
                self.at += 1;
                let value = self.value()?;
                let limit = value.parse().map_err(|_| {
                    format!("unable to parse requirement: values[0][{name}]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer")
                })?;
                if sign == ">" {
                    Test::Above(limit)
                } else {
                    Test::Below(limit)
                }
            }
            found => {
                return Err(format!(
                    "unable to parse requirement: found '{found}', expected: in, notin, =, ==, !=, gt, lt"
                ));
            }
        };
        let values = match &test {
            Test::In(values) | Test::NotIn(values) => values.as_slice(),
            _ => &[],
        };
        for (place, value) in values.iter().enumerate() {
            let wrong = super::names::label_value(value);
            if !wrong.is_empty() {
                return Err(format!(
                    "unable to parse requirement: values[{place}][{name}]: Invalid value: {value:?}: {}",
                    wrong.join("; ")
                ));
            }
        }
        Ok(Requirement { name, test })
    }

    /// Parses a value, which may be empty.
    fn value(&mut self) -> Result<String, String> {
        match self.peek() {
            "" | "," | ")" => Ok(String::new()),
            found if found.starts_with(|char: char| "=!(<>".contains(char)) => Err(format!(
                "unable to parse requirement: found '{found}', expected: identifier"
            )),
            _ => Ok(self.next()),
        }
    }

    fn values(&mut self) -> Result<Vec<String>, String> {
        let open = self.next();
        if open != "(" {
            return Err(format!(
                "unable to parse requirement: found '{open}' expected: '('"
            ));
        }
        let mut values = vec![self.value()?];
        loop {
            match self.next().as_str() {
                ")" => return Ok(values),
                "," => values.push(self.value()?),
                found => {
                    return Err(format!(
                        "unable to parse requirement: found '{found}', expected: ',', or ')'"
                    ));
                }
            }
        }
    }
}

/// A field selector, as in `?fieldSelector=`. The kind decides which fields it supports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<FieldRequirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldRequirement {
    field: String,
    value: String,
    equal: bool,
}

impl FieldSelector {
    /// Parses a selector.
    ///
    /// # Errors
    /// The text of the API server's response.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut requirements = Vec::new();
        for term in split_terms(text) {
            if term.is_empty() {
                continue;
            }
            let (at, length, equal) = find_sign(&term)
                .ok_or_else(|| format!("invalid selector: '{text}'; can't understand '{term}'"))?;
            requirements.push(FieldRequirement {
                field: term[..at].to_owned(),
                value: unescape(&term[at + length..])?,
                equal,
            });
        }
        Ok(Self(requirements))
    }

    /// Returns whether the selector matches every object.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the fields that the selector uses.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|requirement| requirement.field.as_str())
    }

    /// Returns whether the selector uses fields that are not in the [`Head`].
    pub fn needs_body(&self) -> bool {
        self.fields()
            .any(|field| !matches!(field, "metadata.name" | "metadata.namespace"))
    }

    /// Returns the value that the selector requires of a field, if it requires one.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|requirement| requirement.equal && requirement.field == field)
            .map(|requirement| requirement.value.as_str())
    }

    /// Returns whether the selector matches an object with the given field values.
    pub fn matches(&self, value_of: impl Fn(&str) -> String) -> bool {
        self.0
            .iter()
            .all(|requirement| (value_of(&requirement.field) == requirement.value) == requirement.equal)
    }
}

/// Returns a field of an object by its path, in the form that selectors compare.
pub fn field_value(object: &Value, path: &str) -> String {
    let mut value = object;
    for step in path.split('.') {
        value = &value[step];
    }
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        _ => String::new(),
    }
}

/// Splits a text at commas that are not escaped.
fn split_terms(text: &str) -> Vec<String> {
    let mut terms = vec![String::new()];
    let mut escaped = false;
    for char in text.chars() {
        match char {
            ',' if !escaped => terms.push(String::new()),
            _ => {
                if let Some(last) = terms.last_mut() {
                    last.push(char);
                }
            }
        }
        escaped = char == '\\' && !escaped;
    }
    terms
}

fn find_sign(term: &str) -> Option<(usize, usize, bool)> {
    let mut escaped = false;
    for (at, char) in term.char_indices() {
        if !escaped {
            for (sign, equal) in [("!=", false), ("==", true), ("=", true)] {
                if term[at..].starts_with(sign) {
                    return Some((at, sign.len(), equal));
                }
            }
        }
        escaped = char == '\\' && !escaped;
    }
    None
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        if char != '\\' {
            out.push(char);
            continue;
        }
        match chars.next() {
            Some(next @ ('\\' | ',' | '=')) => out.push(next),
            Some(next) => {
                return Err(format!(
                    "invalid field selector: invalid escape sequence: \\{next}"
                ));
            }
            None => return Err("invalid field selector: invalid escape sequence: \\".to_owned()),
        }
    }
    Ok(out)
}

/// Returns the key of a `matchExpressions` requirement, and the requirement in text form.
pub fn expression_text(term: &Value) -> (String, String) {
    let key = term["key"].as_str().unwrap_or_default();
    let mut values: Vec<&str> = term["values"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    values.sort_unstable();
    let values = values.join(",");
    let text = match term["operator"].as_str().unwrap_or_default() {
        "In" => format!("{key} in ({values})"),
        "NotIn" => format!("{key} notin ({values})"),
        "DoesNotExist" => format!("!{key}"),
        _ => key.to_owned(),
    };
    (key.to_owned(), text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn head(labels: &Value) -> Head {
        Head::of(&json!({"metadata": {"name": "a", "labels": labels}}))
    }

    #[test]
    fn labels_are_selected() {
        let web = head(&json!({"app": "web", "tier": "front", "n": "5"}));
        for (text, selected) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier=front", true),
            ("app!=web", false),
            ("missing!=web", true),
            ("app in (api, web)", true),
            ("app notin (api,web)", false),
            ("missing notin (a)", true),
            ("app", true),
            ("!app", false),
            ("!missing", true),
            ("n>4", true),
            ("n<5", false),
            ("app=", false),
            ("app in (web),!x , n", true),
        ] {
            let selector = LabelSelector::parse(text);
            assert_eq!(selector.map(|one| one.matches(&web)), Ok(selected), "{text}");
        }
        for text in [
            "app in",
            "app in web",
            "=x",
            "a,,b",
            "a=b=c",
            "app=a b",
            ",a",
            "-a=b",
            "a=b,",
            "n>x",
        ] {
            assert!(LabelSelector::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn fields_are_selected() {
        let pod =
            json!({"metadata": {"name": "a"}, "status": {"phase": "Running"}, "spec": {"hostNetwork": true}});
        for (text, selected) in [
            ("", true),
            ("metadata.name=a", true),
            ("metadata.name!=a", false),
            ("metadata.name==a,status.phase=Running", true),
            ("spec.nodeName=", true),
            ("spec.hostNetwork=true", true),
            ("metadata.name=a\\,b", false),
        ] {
            let selector = FieldSelector::parse(text);
            let matched = selector.map(|one| one.matches(|field| field_value(&pod, field)));
            assert_eq!(matched, Ok(selected), "{text}");
        }
        assert!(FieldSelector::parse("metadata.name").is_err());
        assert!(FieldSelector::parse("a=\\x").is_err());
    }
}
