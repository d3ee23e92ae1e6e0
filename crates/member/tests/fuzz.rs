//! Kubeconfigs, mutated: whatever it is, the end is a result.

use serde_json::Value;
use starling_member::MemberConfig;

/// The credentials of the corpus.
const SECRET: &str = "secret-value";

#[test]
fn tenant_fuzz_kubeconfigs() {
    starling_fuzz::inputs!("kubeconfigs", |input| {
        let text = String::from_utf8_lossy(input);
        let named = serde_saphyr::from_str(&text).is_ok_and(|value| is_a_name(&value));
        if let Err(error) = MemberConfig::from_kubeconfig(&text) {
            let shown = format!("{error} {error:?}");
            assert!(named || !shown.contains(SECRET), "{shown}");
        }
    });
}

/// Returns whether a mutation has put the credentials where a name belongs: errors show names.
fn is_a_name(value: &Value) -> bool {
    const NAMES: [&str; 5] = ["name", "cluster", "user", "context", "current-context"];
    match value {
        Value::Array(items) => items.iter().any(is_a_name),
        Value::Object(fields) => fields.iter().any(|(name, field)| {
            (NAMES.contains(&name.as_str()) && field.as_str().is_some_and(|text| text.contains(SECRET)))
                || is_a_name(field)
        }),
        _ => false,
    }
}
