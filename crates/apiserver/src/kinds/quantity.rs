//! Quantities such as `100m` and `1Gi`, and their canonical form.

use std::cmp::Ordering;

/// The binary units: suffix and power of two.
const BINARY: [(&str, u32); 6] = [
    ("Ki", 10),
    ("Mi", 20),
    ("Gi", 30),
    ("Ti", 40),
    ("Pi", 50),
    ("Ei", 60),
];
const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

/// Returns the canonical form of a quantity; `None` if it is invalid or needs more than 128 bits.
pub fn canonical(text: &str) -> Option<String> {
    let text = text.trim();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = digits
        .find(|char: char| !char.is_ascii_digit() && char != '.')
        .unwrap_or(digits.len());
    let (number, suffix) = digits.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let places = i32::try_from(fraction.len()).ok()?;
    let sign = if negative && mantissa != 0 { "-" } else { "" };
    if let Some((_, bits)) = BINARY.iter().find(|(unit, _)| *unit == suffix) {
        return binary(mantissa, places, *bits).map(|text| format!("{sign}{text}"));
    }
    let (exponent, scientific) = match DECIMAL.iter().find(|(unit, _)| *unit == suffix) {
        Some((_, exponent)) => (*exponent, false),
        None => (suffix.strip_prefix(['e', 'E'])?.parse().ok()?, true),
    };
    let (mantissa, exponent) = in_thousands(mantissa, exponent - places)?;
    if scientific {
        let tail = if exponent == 0 {
            String::new()
        } else {
            format!("e{exponent}")
        };
        return Some(format!("{sign}{mantissa}{tail}"));
    }
    let (unit, _) = DECIMAL.iter().find(|(_, power)| *power == exponent)?;
    Some(format!("{sign}{mantissa}{unit}"))
}

/// Compares two quantities; `None` if one is invalid.
pub fn compare(one: &str, other: &str) -> Option<Ordering> {
    Some(billionths(one)?.cmp(&billionths(other)?))
}

/// Returns the sum of two quantities, with units of the kind of the first, or of the second if the first is zero;
/// `None` if one is invalid.
pub fn sum(one: &str, other: &str) -> Option<String> {
    let (first, second) = (billionths(one)?, billionths(other)?);
    let total = first.checked_add(second)?;
    let sign = if total < 0 { "-" } else { "" };
    let total = i128::try_from(total.unsigned_abs()).ok()?;
    let format = if first == 0 { other } else { one };
    let text = if format.ends_with('i') {
        binary(total, 9, 0)?
    } else {
        let (mantissa, exponent) = in_thousands(total, -9)?;
        let (unit, _) = DECIMAL.iter().find(|(_, power)| *power == exponent)?;
        format!("{mantissa}{unit}")
    };
    Some(format!("{sign}{text}"))
}

/// Returns the value of a quantity in billionths, the smallest unit.
fn billionths(text: &str) -> Option<i128> {
    let canonical = canonical(text)?;
    let end = canonical
        .find(|char: char| !char.is_ascii_digit() && char != '-')
        .unwrap_or(canonical.len());
    let (number, suffix) = canonical.split_at(end);
    let number: i128 = number.parse().ok()?;
    if let Some((_, bits)) = BINARY.iter().find(|(unit, _)| *unit == suffix) {
        return number
            .checked_mul(1_i128.checked_shl(*bits)?)?
            .checked_mul(1_000_000_000);
    }
    let exponent = match DECIMAL.iter().find(|(unit, _)| *unit == suffix) {
        Some((_, exponent)) => *exponent,
        None => suffix.strip_prefix('e')?.parse().ok()?,
    };
    number.checked_mul(10_i128.checked_pow(u32::try_from(exponent.checked_add(9)?).ok()?)?)
}

/// Returns the largest decimal unit in which the number is whole. Fractions of a billionth are rounded up.
fn in_thousands(mut mantissa: i128, mut exponent: i32) -> Option<(i128, i32)> {
    if mantissa == 0 {
        return Some((0, 0));
    }
    while exponent < -9 {
        mantissa = mantissa / 10 + i128::from(mantissa % 10 != 0);
        exponent += 1;
    }
    while exponent.rem_euclid(3) != 0 {
        mantissa = mantissa.checked_mul(10)?;
        exponent -= 1;
    }
    while mantissa % 1000 == 0 && exponent < 18 {
        mantissa /= 1000;
        exponent += 3;
    }
    Some((mantissa, exponent))
}

/// Returns the largest binary unit in which the number is whole; thousandths if there is none.
fn binary(mantissa: i128, places: i32, bits: u32) -> Option<String> {
    let scale = 10_i128.checked_pow(u32::try_from(places).ok()?)?;
    let value = mantissa.checked_mul(1_i128.checked_shl(bits)?)?;
    if value % scale != 0 {
        let (mantissa, exponent) = in_thousands(value, -places)?;
        let (unit, _) = DECIMAL.iter().find(|(_, power)| *power == exponent)?;
        return Some(format!("{mantissa}{unit}"));
    }
    let mut value = value / scale;
    let mut power = 0;
    while value != 0 && value % 1024 == 0 && power < 60 {
        value /= 1024;
        power += 10;
    }
    let unit = BINARY
        .iter()
        .find(|(_, bits)| *bits == power)
        .map_or("", |(unit, _)| unit);
    Some(format!("{value}{unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_added_and_compared() {
        for (one, other, expected) in [
            ("100m", "200m", "300m"),
            ("1", "500m", "1500m"),
            ("512Mi", "512Mi", "1Gi"),
            ("1Gi", "1k", "1073742824"),
            ("0", "1Gi", "1Gi"),
            ("1M", "1Mi", "2048576"),
            ("-1", "3", "2"),
            ("1", "-3", "-2"),
            ("1e3", "1", "1001"),
        ] {
            assert_eq!(sum(one, other).as_deref(), Some(expected), "{one} {other}");
        }
        assert_eq!(sum("x", "1"), None);
        assert_eq!(compare("1024Mi", "1Gi"), Some(Ordering::Equal));
        assert_eq!(compare("1000m", "1"), Some(Ordering::Equal));
        assert_eq!(compare("1G", "1Gi"), Some(Ordering::Less));
        assert_eq!(compare("", "1"), None);
    }

    #[test]
    fn quantities_have_a_canonical_form() {
        for (text, form) in [
            ("1", "1"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("0.5", "500m"),
            ("1.5Gi", "1536Mi"),
            ("1024Mi", "1Gi"),
            ("128Mi", "128Mi"),
            ("1000Ki", "1000Ki"),
            ("1000k", "1M"),
            ("0", "0"),
            ("-1000m", "-1"),
            ("1e3", "1e3"),
            ("12e6", "12e6"),
            ("100E", "100E"),
            (".5", "500m"),
            ("010", "10"),
        ] {
            assert_eq!(canonical(text).as_deref(), Some(form), "{text}");
        }
        for text in ["", "a", "1x", "1.2.3", "1 Gi", "--1", "1KB"] {
            assert_eq!(canonical(text), None, "{text}");
        }
    }
}
