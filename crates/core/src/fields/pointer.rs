//! JSON pointers (RFC 6901).

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde_json::Value;
use thiserror::Error;

/// A JSON pointer to a field, such as `/spec/replicas`; never to the whole object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pointer {
    tokens: Vec<String>,
}

/// An error in the text of a pointer to a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PointerError {
    /// The text does not begin with `/`.
    #[error("is not a JSON pointer: it must begin with /, as in /spec/replicas")]
    NoSlash,
    /// A `~` that is neither `~0` nor `~1`.
    #[error("is not a JSON pointer: ~ must be written as ~0, and / within a name as ~1")]
    Tilde,
    /// The text names no field, or the position after the last item of a list.
    #[error("names no field: give a path such as /spec/replicas")]
    NoField,
}

impl Pointer {
    /// Returns the names and indexes of the path, unescaped; never empty.
    pub(super) fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// Reports whether the pointer is, or contains, the field with these tokens.
    #[must_use]
    pub fn covers(&self, tokens: &[&str]) -> bool {
        self.tokens.len() <= tokens.len() && self.tokens.iter().zip(tokens).all(|(ours, other)| ours == other)
    }
}

impl FromStr for Pointer {
    type Err = PointerError;

    fn from_str(text: &str) -> Result<Self, PointerError> {
        if text.is_empty() || text == "/" {
            return Err(PointerError::NoField);
        }
        let path = text.strip_prefix('/').ok_or(PointerError::NoSlash)?;
        let tokens = path.split('/').map(unescape).collect::<Result<Vec<_>, _>>()?;
        if tokens.iter().any(|token| token == "-") {
            return Err(PointerError::NoField);
        }
        Ok(Self { tokens })
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tokens
            .iter()
            .try_for_each(|token| write!(f, "/{}", token.replace('~', "~0").replace('/', "~1")))
    }
}

fn unescape(token: &str) -> Result<String, PointerError> {
    let mut parts = token.split('~');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (escaped, rest) = match (part.strip_prefix('0'), part.strip_prefix('1')) {
            (Some(rest), _) => ('~', rest),
            (_, Some(rest)) => ('/', rest),
            _ => return Err(PointerError::Tilde),
        };
        text.push(escaped);
        text.push_str(rest);
    }
    Ok(text)
}

/// Removes the fields from an object. Returns the pointers of those that existed.
pub fn remove<'a>(object: &mut Value, pointers: impl IntoIterator<Item = &'a Pointer>) -> Vec<&'a Pointer> {
    let mut pointers: Vec<&Pointer> = pointers.into_iter().collect();
    // Later items of a list first, so that the indexes of the others do not change.
    pointers.sort_by(|a, b| order(b, a));
    pointers.dedup();
    pointers.retain(|pointer| remove_one(object, &pointer.tokens));
    pointers.reverse();
    pointers
}

fn order(a: &Pointer, b: &Pointer) -> Ordering {
    let places = |token: &String| token.parse::<usize>().ok();
    for (one, other) in a.tokens.iter().zip(&b.tokens) {
        let by_place = match (places(one), places(other)) {
            (Some(one), Some(other)) => one.cmp(&other),
            _ => Ordering::Equal,
        };
        match by_place.then_with(|| one.cmp(other)) {
            Ordering::Equal => {}
            different => return different,
        }
    }
    a.tokens.len().cmp(&b.tokens.len())
}

fn remove_one(object: &mut Value, tokens: &[String]) -> bool {
    let Some((token, rest)) = tokens.split_first() else {
        return false;
    };
    match (object, rest.is_empty()) {
        (Value::Object(fields), true) => fields.remove(token).is_some(),
        (Value::Object(fields), false) => fields.get_mut(token).is_some_and(|next| remove_one(next, rest)),
        (Value::Array(items), last) => match token.parse::<usize>() {
            Ok(place) if place < items.len() && last => {
                items.remove(place);
                true
            }
            Ok(place) => items.get_mut(place).is_some_and(|next| remove_one(next, rest)),
            Err(_) => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pointers_are_parsed_and_written() {
        for text in [
            "/spec/replicas",
            "/metadata/annotations/a.b~1c",
            "/data/x~0y",
            "/a//b",
        ] {
            assert_eq!(text.parse::<Pointer>().unwrap().to_string(), text);
        }
        let slash: Pointer = "/metadata/annotations/a.b~1c".parse().unwrap();
        assert_eq!(slash.tokens(), ["metadata", "annotations", "a.b/c"]);
        for (text, error) in [
            ("", PointerError::NoField),
            ("/", PointerError::NoField),
            ("/spec/list/-", PointerError::NoField),
            ("spec/replicas", PointerError::NoSlash),
            (".spec.replicas", PointerError::NoSlash),
            ("/a~2", PointerError::Tilde),
            ("/a~", PointerError::Tilde),
        ] {
            assert_eq!(text.parse::<Pointer>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn fields_are_removed_and_the_indexes_of_others_stay() {
        let mut object = json!({"a": {"b": 1, "c": 2}, "l": [{"x": 0}, {"x": 1, "y": 1}, {"x": 2}]});
        let pointers: Vec<Pointer> = [
            "/l/0", "/a/b", "/l/2", "/l/1/y", "/a/none", "/l/9", "/a/c/d", "/a/b",
        ]
        .into_iter()
        .map(|text| text.parse().unwrap())
        .collect();
        let found = remove(&mut object, &pointers);
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["/a/b", "/l/0", "/l/1/y", "/l/2"]);
        assert_eq!(object, json!({"a": {"c": 2}, "l": [{"x": 1}]}));
    }

    #[test]
    fn a_pointer_covers_what_is_in_it() {
        let labels: Pointer = "/metadata/labels".parse().unwrap();
        assert!(labels.covers(&["metadata", "labels", "x"]) && labels.covers(&["metadata", "labels"]));
        assert!(!labels.covers(&["metadata"]) && !labels.covers(&["metadata", "annotations"]));
    }
}
