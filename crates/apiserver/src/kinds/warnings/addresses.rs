//! Addresses and ranges that are valid for historical reasons, and not in their standard form.

use std::net::IpAddr;

/// Returns the warning about an address.
pub(super) fn address(path: &str, value: &str) -> Option<String> {
    let address = lenient(value)?;
    let shown = address.to_canonical();
    if value.parse::<IpAddr>().is_err() || shown != address {
        return Some(format!(
            "{path}: non-standard IP address {value:?} will be considered invalid in a future Kubernetes release: use \"{shown}\""
        ));
    }
    (address.is_ipv6() && address.to_string() != value).then(|| {
        format!("{path}: IPv6 address {value:?} should be in RFC 5952 canonical format (\"{address}\")")
    })
}

/// Returns the warnings about a range.
pub(super) fn range(path: &str, value: &str) -> Vec<String> {
    let Some(range) = Range::read(value) else {
        return Vec::new();
    };
    let mut out = Vec::new();
    let (shown, first) = (range.address.to_canonical(), range.first().to_canonical());
    let bits = if range.is_mapped() {
        range.bits.saturating_sub(96)
    } else {
        range.bits
    };
    let shortest = format!("{first}/{bits}");
    if shown != first {
        let all = if range.address.is_ipv4() { 32 } else { 128 };
        out.push(format!(
            "{path}: CIDR value {value:?} is ambiguous in this context (should be {shortest:?} or \"{shown}/{all}\"?)"
        ));
    }
    if !range.is_strict || range.is_mapped() {
        out.push(format!(
            "{path}: non-standard CIDR value {value:?} will be considered invalid in a future Kubernetes release: use {shortest:?}"
        ));
    }
    let standard = format!("{}/{}", range.address, range.bits);
    if out.is_empty() && range.address.is_ipv6() && standard != value {
        out.push(format!(
            "{path}: IPv6 CIDR value {value:?} should be in RFC 5952 canonical format ({standard:?})"
        ));
    }
    out
}

struct Range {
    address: IpAddr,
    bits: u32,
    /// Whether its form is the one of today: without leading zeros.
    is_strict: bool,
}

impl Range {
    fn read(value: &str) -> Option<Self> {
        let (address, bits) = value.split_once('/')?;
        let has_digits = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
        let is_strict = address.parse::<IpAddr>().is_ok() && (bits == "0" || !bits.starts_with('0'));
        let range = Self {
            address: lenient(address)?,
            bits: bits.parse().ok().filter(|_| has_digits)?,
            is_strict,
        };
        let most = if range.address.is_ipv4() { 32 } else { 128 };
        (range.bits <= most).then_some(range)
    }

    fn is_mapped(&self) -> bool {
        self.address.to_canonical() != self.address
    }

    /// Returns the first address of the range.
    fn first(&self) -> IpAddr {
        match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - self.bits).unwrap_or_default();
                IpAddr::V4((u32::from(address) & mask).into())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - self.bits).unwrap_or_default();
                IpAddr::V6((u128::from(address) & mask).into())
            }
        }
    }
}

/// Reads an address whose decimal parts may have leading zeros.
fn lenient(value: &str) -> Option<IpAddr> {
    let (head, decimal) = match value.rsplit_once(':') {
        Some((head, tail)) if tail.contains('.') => (format!("{head}:"), tail),
        Some(_) => return value.parse().ok(),
        None => (String::new(), value),
    };
    let parts: Vec<&str> = decimal
        .split('.')
        .map(|part| match part.trim_start_matches('0') {
            "" if !part.is_empty() => "0",
            rest => rest,
        })
        .collect();
    format!("{head}{}", parts.join(".")).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{address, range};

    #[test]
    fn a_standard_address_has_no_warning() {
        for value in ["10.0.0.1", "fd00::1", "::", "no address"] {
            assert_eq!(address("ip", value), None, "{value}");
        }
    }

    #[test]
    fn leading_zeros_and_mapped_addresses_are_not_standard() {
        for value in ["010.0.0.001", "::ffff:10.0.0.1"] {
            let warning = address("ip", value).unwrap();
            assert!(warning.ends_with("use \"10.0.0.1\""), "{warning}");
        }
        let warning = address("ip", "FD00:0::1").unwrap();
        assert!(warning.contains("canonical format (\"fd00::1\")"), "{warning}");
    }

    #[test]
    fn a_range_with_bits_of_its_host_is_ambiguous() {
        assert_eq!(range("cidr", "10.0.0.0/24"), Vec::<String>::new());
        let warnings = range("cidr", "10.0.0.5/024");
        assert!(warnings[0].contains("should be \"10.0.0.0/24\" or \"10.0.0.5/32\"?"));
        assert!(warnings[1].ends_with("use \"10.0.0.0/24\""), "{warnings:?}");
        assert_eq!(range("cidr", "10.0.0.5/33"), Vec::<String>::new());
        assert_eq!(range("cidr", "0.0.0.0/0"), Vec::<String>::new());
    }
}
