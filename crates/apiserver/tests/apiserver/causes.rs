//! Answers as far as they are compared: the code and the causes, in any order, since Go's maps have none.

use serde_json::Value;
use starling_apiserver::Cause;

use crate::real::Answer;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    Taken,
    /// Reason, field and message of each cause, sorted.
    Invalid(Vec<(String, String, String)>),
    /// A code without causes, and the message.
    Refused(u16, String),
}

/// Cuts off what is another library's: the rest of a message about a syntax error or a regular expression.
fn normal(message: &str) -> String {
    for tail in ["Syntax error: ", "error parsing regexp: "] {
        if let Some(place) = message.find(tail) {
            return message[..place + tail.len()].to_owned();
        }
    }
    // Whole schemas in the form that Kubernetes has inside.
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

pub(crate) fn of_causes(causes: &[Cause]) -> Answered {
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
    Answered::Invalid(causes)
}

pub(crate) fn of_status(answer: &Answer) -> Answered {
    if answer.code < 300 {
        return Answered::Taken;
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
            Answered::Invalid(causes)
        }
        _ => Answered::Refused(answer.code, text(&answer.body["message"])),
    }
}

/// Says how the answers differ, if they do.
pub(crate) fn compare(what: &str, wanted: &Answered, got: &Answered) -> Option<String> {
    (wanted != got).then(|| format!("{what}\n  wanted {wanted:?}\n  got    {got:?}"))
}
