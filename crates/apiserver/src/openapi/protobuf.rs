//! The OpenAPI v2 document as protobuf, for clients that support no other form: `kubectl` requests it for a kind that
//! is missing from the OpenAPI v3 documents.
//!
//! The messages are those of `gnostic-models/openapiv2/OpenAPIv2.proto`. Fields that `v2` does not write are left
//! out.

use serde_json::Value;

/// A protobuf message that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn number(&mut self, mut number: u64) {
        loop {
            let low = u8::try_from(number & 0x7f).unwrap_or_default();
            number >>= 7;
            if number == 0 {
                return self.0.push(low);
            }
            self.0.push(low | 0x80);
        }
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.number(field << 3 | 2);
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Writes a string field if the value is a string.
    fn text(&mut self, field: u64, text: &Value) {
        if let Some(text) = text.as_str().filter(|text| !text.is_empty()) {
            self.bytes(field, text.as_bytes());
        }
    }

    fn texts(&mut self, field: u64, list: &Value) {
        for text in list.as_array().into_iter().flatten() {
            self.text(field, text);
        }
    }

    fn flag(&mut self, field: u64, flag: &Value) {
        if flag == true {
            self.number(field << 3);
            self.number(1);
        }
    }

    fn integer(&mut self, field: u64, value: &Value) {
        if let Some(number) = value.as_u64().filter(|number| *number > 0) {
            self.number(field << 3);
            self.number(number);
        }
    }

    fn float(&mut self, field: u64, value: &Value) {
        if let Some(number) = value.as_f64() {
            self.number(field << 3 | 1);
            self.0.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn message(&mut self, field: u64, message: &Self) {
        self.bytes(field, &message.0);
    }

    /// Writes each entry of a map as a named message.
    fn named<'a>(
        &mut self,
        field: u64,
        all: impl Iterator<Item = (&'a String, &'a Value)>,
        write: fn(&Value) -> Self,
    ) {
        for (name, value) in all {
            let mut entry = Self::default();
            entry.bytes(1, name.as_bytes());
            entry.message(2, &write(value));
            self.message(field, &entry);
        }
    }

    /// Writes the extensions, whose names begin with `x-`.
    fn extensions(&mut self, field: u64, of: &Value) {
        let all = fields(of).filter(|(name, _)| name.starts_with("x-"));
        self.named(field, all, any);
    }
}

fn fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// Writes any value as YAML, which JSON is.
fn any(value: &Value) -> Message {
    let mut any = Message::default();
    any.bytes(2, value.to_string().as_bytes());
    any
}

/// Wraps a message in a message with a `oneof`.
fn choice(field: u64, message: &Message) -> Message {
    let mut outer = Message::default();
    outer.message(field, message);
    outer
}

/// Encodes a document.
pub(super) fn document(document: &Value) -> Vec<u8> {
    let mut out = Message::default();
    out.text(1, &document["swagger"]);
    let mut info = Message::default();
    info.text(1, &document["info"]["title"]);
    info.text(2, &document["info"]["version"]);
    out.message(2, &info);
    let mut paths = Message::default();
    paths.named(2, fields(&document["paths"]), path);
    out.message(8, &paths);
    let mut definitions = Message::default();
    definitions.named(1, fields(&document["definitions"]), schema);
    out.message(9, &definitions);
    out.0
}

fn path(path: &Value) -> Message {
    let mut out = Message::default();
    for (field, method) in [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (8, "patch")] {
        if path[method].is_object() {
            out.message(field, &operation(&path[method]));
        }
    }
    out
}

fn operation(operation: &Value) -> Message {
    let mut out = Message::default();
    out.texts(6, &operation["produces"]);
    out.texts(7, &operation["consumes"]);
    for one in operation["parameters"].as_array().into_iter().flatten() {
        out.message(8, &choice(1, &parameter(one)));
    }
    let mut responses = Message::default();
    responses.named(1, fields(&operation["responses"]), |response| {
        choice(1, &self::response(response))
    });
    out.message(9, &responses);
    out.texts(10, &operation["schemes"]);
    out.extensions(13, operation);
    out
}

fn response(response: &Value) -> Message {
    let mut out = Message::default();
    out.text(1, &response["description"]);
    if response["schema"].is_object() {
        out.message(2, &choice(1, &schema(&response["schema"])));
    }
    out
}

fn parameter(parameter: &Value) -> Message {
    let mut out = Message::default();
    if parameter["in"] == "body" {
        out.text(2, &parameter["name"]);
        out.text(3, &parameter["in"]);
        out.flag(4, &parameter["required"]);
        out.message(5, &schema(&parameter["schema"]));
        return choice(1, &out);
    }
    out.text(2, &parameter["in"]);
    out.text(4, &parameter["name"]);
    out.text(6, &parameter["type"]);
    out.flag(20, &parameter["uniqueItems"]);
    choice(2, &choice(3, &out))
}

fn schema(schema: &Value) -> Message {
    let mut out = Message::default();
    for (field, name) in [
        (1, "$ref"),
        (2, "format"),
        (3, "title"),
        (4, "description"),
        (13, "pattern"),
    ] {
        out.text(field, &schema[name]);
    }
    for (field, name) in [(6, "multipleOf"), (7, "maximum"), (9, "minimum")] {
        out.float(field, &schema[name]);
    }
    for (field, name) in [
        (8, "exclusiveMaximum"),
        (10, "exclusiveMinimum"),
        (16, "uniqueItems"),
    ] {
        out.flag(field, &schema[name]);
    }
    for (field, name) in [
        (11, "maxLength"),
        (12, "minLength"),
        (14, "maxItems"),
        (15, "minItems"),
        (17, "maxProperties"),
        (18, "minProperties"),
    ] {
        out.integer(field, &schema[name]);
    }
    out.texts(19, &schema["required"]);
    for one in schema["enum"].as_array().into_iter().flatten() {
        out.message(20, &any(one));
    }
    match &schema["additionalProperties"] {
        Value::Bool(flag) => {
            let mut item = Message::default();
            item.flag(2, &Value::Bool(*flag));
            out.message(21, &item);
        }
        value @ Value::Object(_) => out.message(21, &choice(1, &self::schema(value))),
        _ => {}
    }
    if schema["type"].is_string() {
        let mut ty = Message::default();
        ty.text(1, &schema["type"]);
        out.message(22, &ty);
    }
    if schema["items"].is_object() {
        out.message(23, &choice(1, &self::schema(&schema["items"])));
    }
    if schema["properties"].is_object() {
        let mut properties = Message::default();
        properties.named(1, fields(&schema["properties"]), self::schema);
        out.message(25, &properties);
    }
    out.extensions(31, schema);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_have_the_wire_format() {
        let written =
            schema(&json!({"type": "object", "uniqueItems": true, "maximum": 1.0, "maxItems": 300}));
        let expected = [
            &[0x39, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f][..],
            &[0x80, 0x01, 1],
            &[0x70, 0xac, 0x02],
            &[0xb2, 0x01, 8, 0x0a, 6],
            b"object",
        ];
        assert_eq!(written.0, expected.concat());
        let named = schema(&json!({"x-a": [1]}));
        assert_eq!(
            named.0,
            [
                &[0xfa, 0x01, 12, 0x0a, 3][..],
                b"x-a",
                &[0x12, 5, 0x12, 3],
                b"[1]"
            ]
            .concat()
        );
    }
}
