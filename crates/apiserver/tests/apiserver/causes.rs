//! The compared part of responses: the code and the causes, sorted, since Go maps have no order.

use serde_json::Value;
use starling_apiserver::Cause;

use crate::real::Answer;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Accepted,
    /// The reason, field and message of each cause, sorted.
    Invalid(Vec<(String, String, String)>),
    /// A code without causes, and the message.
    Refused(u16, String),
}

/// Removes the text of other libraries: the rest of a message about a syntax error or a regular expression.
fn normal(message: &str) -> String {
    for tail in ["Syntax error: ", "error parsing regexp: "] {
        if let Some(place) = message.find(tail) {
            return message[..place + tail.len()].to_owned();
        }
    }
    // Whole schemas in Kubernetes' internal form.
    for why in [
        "only [Description",
        "must contain unique",
        "must have exactly one",
    ] {
        let shown = why.starts_with("only") || message.contains("\"Schema\":{");
        if let Some(place) = message.find(why).filter(|_| shown) {
            return message[place..].to_owned();
        }
    }
    message.to_owned()
}

pub(crate) fn of_causes(causes: &[Cause]) -> Outcome {
    let mut causes: Vec<_> = causes
        .iter()
        .map(|cause| {
            (
                cause.reason.to_owned(),
                cause.field.clone(),
                normal(&cause.message),
            )
        })
        .collect();
    causes.sort();
    Outcome::Invalid(causes)
}

pub(crate) fn of_status(answer: &Answer) -> Outcome {
    if answer.code < 300 {
        return Outcome::Accepted;
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match answer.body["details"]["causes"].as_array() {
        Some(causes) if answer.code == 422 => {
            let mut causes: Vec<_> = causes
                .iter()
                .map(|cause| {
                    let message = normal(&text(&cause["message"]));
                    (text(&cause["reason"]), text(&cause["field"]), message)
                })
                .collect();
            causes.sort();
            Outcome::Invalid(causes)
        }
        _ => Outcome::Refused(answer.code, text(&answer.body["message"])),
    }
}

/// Returns how the responses differ; `None` if they are equal.
pub(crate) fn compare(what: &str, wanted: &Outcome, got: &Outcome) -> Option<String> {
    (wanted != got).then(|| format!("{what}\n  wanted {wanted:?}\n  got    {got:?}"))
}
