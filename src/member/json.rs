//! How much there is to a text of JSON, before it is parsed.

/// Counts the values of a JSON text, roughly: its commas and opening brackets outside of strings, and one.
///
/// Parsing makes of each value a structure of up to some hundred bytes, whatever few bytes it has in the text
/// (`[{},{},…`), so a bound on bytes alone is none on memory.
pub(super) fn values(text: &[u8]) -> usize {
    let (mut count, mut in_string, mut escaped) = (1, false, false);
    for byte in text {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
        } else {
            match byte {
                b'"' => in_string = true,
                b',' | b'[' | b'{' => count += 1,
                _ => {}
            }
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_of_strings() {
        for (text, count) in [
            ("", 1),
            ("7", 1),
            ("[1,2,3]", 4),
            (r#"{"a":{},"b":[{},{}]}"#, 8),
            (r#"{"text":"a,b,[c],{d}"}"#, 2),
            (r#"["\"",","]"#, 3),
            (r#"["\\",1]"#, 3),
            (r#"["unfinished, "#, 2),
        ] {
            assert_eq!(values(text.as_bytes()), count, "{text}");
        }
    }
}
