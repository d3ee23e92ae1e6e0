//! Estimates the number of values of a JSON text before it is parsed.

/// Estimates the number of values of a JSON text: one plus its commas and opening brackets outside of strings.
///
/// A parsed value takes up to some hundred bytes, even if it has few bytes in the text (`[{},{},…`). A limit on bytes
/// alone therefore does not limit memory.
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
