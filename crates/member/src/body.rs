//! Changes the bodies of requests.

use bytes::Bytes;
use serde_json::Value;

/// Returns the body with the expected UID of the object. If no such object exists, the member responds with a conflict.
pub(super) fn with_uid(body: &Bytes, uid: &str) -> Bytes {
    match serde_json::from_slice::<Value>(body) {
        Ok(mut object) if object["metadata"].is_object() => {
            object["metadata"]["uid"] = uid.into();
            object.to_string().into()
        }
        _ => body.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_contains_the_expected_uid() {
        let body = with_uid(&r#"{"metadata":{"name":"a"}}"#.into(), "u");
        assert_eq!(&body[..], br#"{"metadata":{"name":"a","uid":"u"}}"#);
    }
}
