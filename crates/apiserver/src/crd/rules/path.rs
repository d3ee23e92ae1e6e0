//! The `fieldPath` of a rule and the paths of selectable fields: `.a.b['c']`.

use thiserror::Error;

use crate::crd::lists::child;
use crate::crd::schema::Schema;

/// Why a path is not that of a field, in the texts of the API server.
#[derive(Debug, PartialEq, Eq, Error)]
pub(in crate::crd) enum FieldPathError {
    #[error("unexpected end of JSON path")]
    UnexpectedEnd,
    #[error("expected [ or . but got: {found}")]
    ExpectedSegment { found: String },
    #[error("expected single quoted string but got {found}")]
    ExpectedQuote { found: String },
    #[error("expected ] but got {found}")]
    ExpectedBracket { found: String },
    #[error("invalid string literal: invalid escape char \\{char}")]
    Escape { char: char },
    /// The schema does not have the field.
    #[error("does not refer to a valid field")]
    UnknownField,
}

/// Parses a path within a schema; returns the path in the form of causes, and the schema of the field.
///
/// # Errors
/// [`FieldPathError`].
pub(in crate::crd) fn field_path<'a>(
    path: &str,
    schema: &'a Schema,
) -> Result<(String, &'a Schema), FieldPathError> {
    let mut written = String::new();
    let mut schema = schema;
    let mut rest = path;
    while !rest.is_empty() {
        let (name, after) = if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[', ']']).unwrap_or(after.len());
            let (name, after) = after.split_at(end);
            if name.is_empty() {
                return Err(FieldPathError::UnexpectedEnd);
            }
            (name.to_owned(), after)
        } else if let Some(after) = rest.strip_prefix('[') {
            bracketed(after)?
        } else {
            let first = rest.chars().next().map_or(0, char::len_utf8);
            let end = rest[first..]
                .find(['.', '[', ']'])
                .map_or(rest.len(), |end| end + first);
            return Err(FieldPathError::ExpectedSegment {
                found: rest[..end].to_owned(),
            });
        };
        rest = after;
        let unknown = FieldPathError::UnknownField;
        if !schema.properties.is_empty() {
            schema = schema.properties.get(&name).ok_or(unknown)?;
            written = child(&written, &name);
        } else {
            schema = schema.additional_schema().ok_or(unknown)?;
            written = format!("{written}[{name}]");
        }
    }
    Ok((written, schema))
}

/// Parses `'name']`; returns the name and the rest.
fn bracketed(text: &str) -> Result<(String, &str), FieldPathError> {
    let Some(inner) = text.strip_prefix('\'') else {
        let end = text.find(['.', '[', ']']).unwrap_or(text.len());
        return Err(FieldPathError::ExpectedQuote {
            found: text[..end].to_owned(),
        });
    };
    let mut name = String::new();
    let mut chars = inner.char_indices();
    while let Some((place, char)) = chars.next() {
        match char {
            '\'' => {
                let after = &inner[place + 1..];
                return match after.strip_prefix(']') {
                    Some(after) => Ok((name, after)),
                    None if after.is_empty() => Err(FieldPathError::UnexpectedEnd),
                    None => Err(FieldPathError::ExpectedBracket {
                        found: after.to_owned(),
                    }),
                };
            }
            '\\' => name.push(match chars.next().map(|(_, char)| char) {
                Some('a') => '\u{7}',
                Some('b') => '\u{8}',
                Some('f') => '\u{c}',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('t') => '\t',
                Some('v') => '\u{b}',
                Some(char @ ('\'' | '\\')) => char,
                Some(char) => return Err(FieldPathError::Escape { char }),
                None => return Err(FieldPathError::UnexpectedEnd),
            }),
            char => name.push(char),
        }
    }
    Err(FieldPathError::UnexpectedEnd)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_are_parsed_within_the_schema() {
        let schema = Schema::read(&json!({"type": "object", "properties": {
            "a": {"type": "object", "properties": {"b.c": {"type": "string"}, "d": {"type": "integer"}}},
            "m": {"type": "object", "additionalProperties": {"type": "string"}}}}));
        for (path, wanted) in [
            (".a.d", Ok("a.d")),
            (".a['b.c']", Ok("a.b.c")),
            (".m['k']", Ok("m[k]")),
            (".m.k", Ok("m[k]")),
            (".none", Err("does not refer to a valid field")),
            (".a.d.e", Err("does not refer to a valid field")),
            ("a", Err("expected [ or . but got: a")),
            ("é.a", Err("expected [ or . but got: é")),
            (".a[0]", Err("expected single quoted string but got 0")),
            (".a['d'", Err("unexpected end of JSON path")),
            (".a['d'x", Err("expected ] but got x")),
            (
                ".a['\\d']",
                Err("invalid string literal: invalid escape char \\d"),
            ),
        ] {
            let got = field_path(path, &schema);
            let got = got.map(|(path, _)| path).map_err(|error| error.to_string());
            assert_eq!(got, wanted.map(str::to_owned).map_err(str::to_owned), "{path}");
        }
    }
}
