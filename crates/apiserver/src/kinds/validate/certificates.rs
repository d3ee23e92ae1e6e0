//! The validation of CertificateSigningRequests.
//!
//! Of a request, the form is checked: one PEM block with one DER sequence. Its signature is not.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::object::names;
use crate::status::Cause;

/// The PEM block that a request has to be.
const REQUEST: &str = "CERTIFICATE REQUEST";

/// Checks a request for a certificate.
pub(super) fn check(object: &Value, causes: &mut Vec<Cause>) {
    let spec = &object["spec"];
    if let Some(why) = problem_of(&bytes(&spec["request"])) {
        let shown = match &spec["request"] {
            Value::String(text) if text.is_empty() => &Value::Null,
            value => value,
        };
        causes.push(Cause::invalid("spec.request", shown, why));
    }
    let usages = spec["usages"].as_array().map(Vec::as_slice).unwrap_or_default();
    if usages.is_empty() {
        causes.push(Cause::required("spec.usages", ""));
    }
    for (index, usage) in usages.iter().enumerate() {
        if usages.get(..index).is_some_and(|before| before.contains(usage)) {
            causes.push(Cause::duplicate(format!("spec.usages[{index}]"), usage));
        }
    }
    signer(&spec["signerName"], causes);
    let seconds = &spec["expirationSeconds"];
    if seconds.as_i64().is_some_and(|seconds| seconds < 600) {
        let why = "may not specify a duration less than 600 seconds (10 minutes)";
        causes.push(Cause::invalid("spec.expirationSeconds", seconds, why));
    }
}

/// Checks the certificate in a status.
pub(super) fn check_status(object: &Value, causes: &mut Vec<Cause>) {
    let given = bytes(&object["status"]["certificate"]);
    if !given.is_empty()
        && !given
            .windows(27)
            .any(|part| part == b"-----BEGIN CERTIFICATE-----")
    {
        let shown = Value::from("<certificate data>");
        let why = "must contain at least one CERTIFICATE PEM block";
        causes.push(Cause::invalid("status.certificate", &shown, why));
    }
}

fn bytes(value: &Value) -> Vec<u8> {
    STANDARD
        .decode(value.as_str().unwrap_or_default())
        .unwrap_or_default()
}

fn signer(name: &Value, causes: &mut Vec<Cause>) {
    const FIELD: &str = "spec.signerName";
    let text = name.as_str().unwrap_or_default();
    if text.is_empty() {
        causes.push(Cause::required(FIELD, ""));
        return;
    }
    if text == "kubernetes.io/legacy-unknown" {
        let why = "the legacy signerName is not allowed via this API version";
        causes.push(Cause::invalid(FIELD, name, why));
        return;
    }
    let is_qualified = text.split_once('/').is_some_and(|(domain, path)| {
        domain.contains('.') && names::dns_subdomain(domain).is_empty() && !path.is_empty()
    });
    if !is_qualified {
        let why = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        causes.push(Cause::invalid(FIELD, name, why));
    }
}

/// Returns why a text is no request in PEM; `None`: it is one.
fn problem_of(pem: &[u8]) -> Option<&'static str> {
    let Some(der) = der(pem) else {
        return Some("PEM block type must be CERTIFICATE REQUEST");
    };
    (!is_sequence(&der)).then_some("asn1: syntax error: truncated tag or length")
}

/// Returns what the PEM block of a request holds.
fn der(pem: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(pem).ok()?;
    let (begin, end) = (
        format!("-----BEGIN {REQUEST}-----"),
        format!("-----END {REQUEST}-----"),
    );
    let (_, from) = text.split_once(&begin)?;
    let (body, _) = from.split_once(&end)?;
    let body: String = body.split_ascii_whitespace().collect();
    STANDARD.decode(body).ok()
}

/// Returns whether bytes are one DER sequence and nothing else.
fn is_sequence(der: &[u8]) -> bool {
    let [0x30, first, rest @ ..] = der else {
        return false;
    };
    let long = usize::from(first & 0x7f);
    if first & 0x80 == 0 {
        return rest.len() == long;
    }
    let Some((length, content)) = rest.split_at_checked(long).filter(|_| (1..=4).contains(&long)) else {
        return false;
    };
    content.len() == length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}
