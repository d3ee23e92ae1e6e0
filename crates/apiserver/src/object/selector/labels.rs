//! Label selectors.

use thiserror::Error;

use crate::object::{Head, names};

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

/// Why a text is not a label selector, in the texts of the API server.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum LabelSelectorError {
    /// A requirement must begin.
    #[error("found '{found}', expected: !, identifier, or 'end of string'")]
    ExpectedRequirement {
        /// The token.
        found: String,
    },
    /// A requirement must follow a comma.
    #[error("found '{found}', expected: identifier after ','")]
    ExpectedAfterComma {
        /// The token.
        found: String,
    },
    /// A comma or the end must follow a requirement.
    #[error("found '{found}', expected: ',' or 'end of string'")]
    ExpectedEnd {
        /// The token.
        found: String,
    },
    /// A key or a value must come.
    #[error("unable to parse requirement: found '{found}', expected: identifier")]
    ExpectedIdentifier {
        /// The token.
        found: String,
    },
    /// An operator must follow a key.
    #[error("unable to parse requirement: found '{found}', expected: in, notin, =, ==, !=, gt, lt")]
    ExpectedOperator {
        /// The token.
        found: String,
    },
    /// A list of values must follow `in` and `notin`.
    #[error("unable to parse requirement: found '{found}' expected: '('")]
    ExpectedValues {
        /// The token.
        found: String,
    },
    /// A list of values must continue or end.
    #[error("unable to parse requirement: found '{found}', expected: ',', or ')'")]
    ExpectedEndOfValues {
        /// The token.
        found: String,
    },
    /// A key is not a qualified name.
    #[error("unable to parse requirement: <nil>: Invalid value: {key:?}: {}", problems.join("; "))]
    Key {
        /// The key.
        key: String,
        /// What is wrong with it.
        problems: Vec<String>,
    },
    /// A value is not a label value.
    #[error("unable to parse requirement: values[{index}][{key}]: Invalid value: {value:?}: {}", problems.join("; "))]
    Value {
        /// The key.
        key: String,
        /// The index of the value.
        index: usize,
        /// The value.
        value: String,
        /// What is wrong with it.
        problems: Vec<String>,
    },
    /// The value of a comparison is not an integer.
    #[error(
        "unable to parse requirement: values[0][{key}]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value \
         must be an integer"
    )]
    NotAnInteger {
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
}

impl LabelSelector {
    /// Parses a selector.
    ///
    /// # Errors
    /// [`LabelSelectorError`].
    pub fn parse(text: &str) -> Result<Self, LabelSelectorError> {
        let mut reader = Reader::new(text);
        let mut requirements = Vec::new();
        loop {
            match reader.peek() {
                "" => return Ok(Self(requirements)),
                "," if requirements.is_empty() => {
                    return Err(LabelSelectorError::ExpectedRequirement {
                        found: ",".to_owned(),
                    });
                }
                _ => requirements.push(reader.requirement()?),
            }
            match reader.next().as_str() {
                "" => return Ok(Self(requirements)),
                "," if matches!(reader.peek(), "" | "," | ")") => {
                    return Err(LabelSelectorError::ExpectedAfterComma { found: reader.next() });
                }
                "," => {}
                found => {
                    return Err(LabelSelectorError::ExpectedEnd {
                        found: found.to_owned(),
                    });
                }
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

    fn requirement(&mut self) -> Result<Requirement, LabelSelectorError> {
        let absent = self.peek() == "!";
        if absent {
            self.at += 1;
        }
        if !absent && self.peek().starts_with(|char: char| "=(),<>".contains(char)) {
            return Err(LabelSelectorError::ExpectedRequirement { found: self.next() });
        }
        let name = self.next();
        if name.is_empty() || name.starts_with(|char: char| "=!(),<>".contains(char)) {
            return Err(LabelSelectorError::ExpectedIdentifier { found: name });
        }
        let problems = names::qualified_name(&name);
        if !problems.is_empty() {
            return Err(LabelSelectorError::Key { key: name, problems });
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
                let Ok(limit) = value.parse() else {
                    return Err(LabelSelectorError::NotAnInteger { key: name, value });
                };
                if sign == ">" {
                    Test::Above(limit)
                } else {
                    Test::Below(limit)
                }
            }
            found => {
                return Err(LabelSelectorError::ExpectedOperator {
                    found: found.to_owned(),
                });
            }
        };
        let values = match &test {
            Test::In(values) | Test::NotIn(values) => values.as_slice(),
            _ => &[],
        };
        for (index, value) in values.iter().enumerate() {
            let problems = names::label_value(value);
            if !problems.is_empty() {
                return Err(LabelSelectorError::Value {
                    key: name,
                    index,
                    value: value.clone(),
                    problems,
                });
            }
        }
        Ok(Requirement { name, test })
    }

    /// Parses a value, which may be empty.
    fn value(&mut self) -> Result<String, LabelSelectorError> {
        match self.peek() {
            "" | "," | ")" => Ok(String::new()),
            found if found.starts_with(|char: char| "=!(<>".contains(char)) => {
                Err(LabelSelectorError::ExpectedIdentifier {
                    found: found.to_owned(),
                })
            }
            _ => Ok(self.next()),
        }
    }

    fn values(&mut self) -> Result<Vec<String>, LabelSelectorError> {
        let open = self.next();
        if open != "(" {
            return Err(LabelSelectorError::ExpectedValues { found: open });
        }
        let mut values = vec![self.value()?];
        loop {
            match self.next().as_str() {
                ")" => return Ok(values),
                "," => values.push(self.value()?),
                found => {
                    return Err(LabelSelectorError::ExpectedEndOfValues {
                        found: found.to_owned(),
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

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
    }

    #[test]
    fn an_invalid_selector_is_rejected_with_the_text_of_the_api_server() {
        for (text, wanted) in [
            ("app in", "unable to parse requirement: found '' expected: '('"),
            (
                "app in web",
                "unable to parse requirement: found 'web' expected: '('",
            ),
            (
                "a in (b c",
                "unable to parse requirement: found 'c', expected: ',', or ')'",
            ),
            (
                "a b",
                "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
            ),
            (
                "a=!b",
                "unable to parse requirement: found '!', expected: identifier",
            ),
            (
                "!=x",
                "unable to parse requirement: found '!=', expected: identifier",
            ),
            ("=x", "found '=', expected: !, identifier, or 'end of string'"),
            (",a", "found ',', expected: !, identifier, or 'end of string'"),
            ("a,,b", "found ',', expected: identifier after ','"),
            ("a=b,", "found '', expected: identifier after ','"),
            ("a=b=c", "found '=', expected: ',' or 'end of string'"),
            ("app=a b", "found 'b', expected: ',' or 'end of string'"),
            (
                "n>x",
                "unable to parse requirement: values[0][n]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
            (
                "-a=b",
                "unable to parse requirement: <nil>: Invalid value: \"-a\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            ),
            (
                "a in (b,-c)",
                "unable to parse requirement: values[1][a]: Invalid value: \"-c\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
            ),
        ] {
            let error = LabelSelector::parse(text).unwrap_err();
            assert_eq!(error.to_string(), wanted, "{text}");
        }
    }
}
