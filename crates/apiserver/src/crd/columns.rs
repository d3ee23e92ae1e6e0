//! Printer columns: the values of an object that tables show.
//!
//! A column has a JSONPath expression in kubectl's dialect. This parser supports what columns use: fields (`.a`,
//! `['a']`, with `\.` for a dot in a name), items (`[0]`, `[-1]`, `[1:3:2]`, `[*]`, `.*`), recursive descent (`..a`),
//! unions, and filters with comparisons (`[?(@.type=="Ready")]`).

use serde_json::Value;

use crate::value;

/// A printer column of a version.
#[derive(Debug, Clone)]
pub struct Column {
    /// The heading.
    pub name: String,
    /// The type: `string`, `integer`, `number`, `boolean` or `date`.
    pub ty: String,
    /// The format of the type; empty for none.
    pub format: String,
    /// The description; empty for none.
    pub description: String,
    /// The priority: `kubectl` shows columns above 0 in wide output only.
    pub priority: i64,
    /// The JSONPath of the value.
    pub json_path: String,
    path: Option<Path>,
}

/// The content of a cell. The age of a date depends on the time of the request.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// No value.
    Empty,
    /// A string, a number or a boolean.
    Value(Value),
    /// A time as the object has it; tables show its age.
    Date(String),
}

impl Column {
    /// Reads an entry of `additionalPrinterColumns`.
    pub(super) fn read(entry: &Value) -> Self {
        let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        let json_path = text("jsonPath");
        Self {
            path: Path::parse(&json_path),
            name: text("name"),
            ty: text("type"),
            format: text("format"),
            description: text("description"),
            priority: entry["priority"].as_i64().unwrap_or_default(),
            json_path,
        }
    }

    /// Returns whether the path is valid; the API server shows no columns from an invalid one on.
    pub fn is_readable(&self) -> bool {
        self.path.is_some()
    }

    /// Returns the cell of an object.
    pub fn cell(&self, object: &Value) -> Cell {
        let found = self.path.as_ref().and_then(|path| path.first(object));
        let Some(found) = found else {
            return Cell::Empty;
        };
        match (self.ty.as_str(), found) {
            ("string", found) => Cell::Value(Value::String(format_value(found))),
            ("date", Value::String(text)) => Cell::Date(text.clone()),
            ("integer", Value::Number(number)) => {
                let whole = number.as_i64().or_else(|| number.as_f64().map(truncated));
                whole.map_or(Cell::Empty, |whole| Cell::Value(Value::from(whole)))
            }
            ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => Cell::Value(found.clone()),
            _ => Cell::Empty,
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the API server truncates too")]
fn truncated(float: f64) -> i64 {
    float as i64
}

/// Formats a value as kubectl's JSONPath does: strings without quotes, lists and maps as JSON.
fn format_value(found: &Value) -> String {
    match found {
        Value::Null => "<no value>".to_owned(),
        Value::Array(_) | Value::Object(_) => value::go_json(found),
        scalar => value::plain(scalar),
    }
}

/// A parsed JSONPath.
#[derive(Debug, Clone)]
struct Path(Vec<Step>);

#[derive(Debug, Clone)]
enum Step {
    Field(String),
    /// All fields or items.
    All,
    /// All descendants.
    Below,
    Slice(Option<i64>, Option<i64>, i64),
    Index(i64),
    Union(Vec<Step>),
    Filter(Operand, Comparison, Operand),
    /// The items that match a filter.
    Having(Path),
}

#[derive(Debug, Clone)]
enum Operand {
    Path(Path),
    Literal(Value),
}

#[derive(Debug, Clone, Copy)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Path {
    fn parse(text: &str) -> Option<Self> {
        let mut steps = Vec::new();
        let mut rest = text.trim().trim_start_matches('$');
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix("..") {
                steps.push(Step::Below);
                rest = after;
                if !rest.starts_with('[') {
                    rest = field(rest, &mut steps)?;
                }
            } else if let Some(after) = rest.strip_prefix('.') {
                // A dot before a bracket, and a trailing dot, have no effect.
                rest = after;
                if !rest.is_empty() && !rest.starts_with('[') {
                    rest = field(rest, &mut steps)?;
                }
            } else if let Some(after) = rest.strip_prefix('[') {
                let end = closing(after)?;
                steps.push(bracket(&after[..end])?);
                rest = &after[end + 1..];
            } else if steps.is_empty() {
                rest = field(rest, &mut steps)?;
            } else {
                return None;
            }
        }
        Some(Self(steps))
    }

    /// Returns the first value that the path selects.
    fn first<'a>(&'a self, object: &'a Value) -> Option<&'a Value> {
        self.values(object).into_iter().next()
    }

    fn values<'a>(&'a self, object: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![object];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.values(value)).collect();
        }
        found
    }
}

/// Parses a name up to the next dot or bracket.
fn field<'a>(text: &'a str, steps: &mut Vec<Step>) -> Option<&'a str> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    let mut end = text.len();
    while let Some((place, char)) = chars.next() {
        match char {
            '\\' => name.push(chars.next()?.1),
            '.' | '[' => {
                end = place;
                break;
            }
            char => name.push(char),
        }
    }
    if name.is_empty() {
        return None;
    }
    steps.push(if name == "*" { Step::All } else { Step::Field(name) });
    Some(&text[end..])
}

/// Returns the position of the closing bracket, skipping those in strings and filters.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut quote = None;
    for (place, char) in text.char_indices() {
        match (quote, char) {
            (Some(open), char) if open == char => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(char),
            (None, '[' | '(') => depth += 1,
            (None, ')') => depth -= 1,
            (None, ']') if depth == 0 => return Some(place),
            (None, ']') => depth -= 1,
            (None, _) => {}
        }
    }
    None
}

fn bracket(text: &str) -> Option<Step> {
    let text = text.trim();
    if let Some(filter) = text.strip_prefix("?(").and_then(|text| text.strip_suffix(')')) {
        return filter_step(filter);
    }
    if text == "*" {
        return Some(Step::All);
    }
    if let Some(name) = quoted(text) {
        return Some(Step::Field(name.replace("\\.", ".")));
    }
    if text.contains(',') {
        return text
            .split(',')
            .map(bracket)
            .collect::<Option<_>>()
            .map(Step::Union);
    }
    if !text.contains(':') {
        return text.parse().ok().map(Step::Index);
    }
    let mut parts = text.split(':').map(|part| match part.trim() {
        "" => Some(None),
        number => number.parse().ok().map(Some),
    });
    let (from, to, step) = (
        parts.next()??,
        parts.next()??,
        parts.next().unwrap_or(Some(None))?,
    );
    Some(Step::Slice(from, to, step.unwrap_or(1)))
}

fn quoted(text: &str) -> Option<&str> {
    let of = |quote| text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
    of('\'').or_else(|| of('"'))
}

fn filter_step(text: &str) -> Option<Step> {
    const COMPARISONS: [(&str, Comparison); 6] = [
        ("==", Comparison::Equal),
        ("!=", Comparison::NotEqual),
        ("<=", Comparison::LessOrEqual),
        (">=", Comparison::GreaterOrEqual),
        ("<", Comparison::Less),
        (">", Comparison::Greater),
    ];
    let found = COMPARISONS
        .iter()
        .filter_map(|(sign, comparison)| Some((text.find(sign)?, *sign, *comparison)))
        .min_by_key(|(place, sign, _)| (*place, usize::MAX - sign.len()));
    let Some((place, sign, comparison)) = found else {
        return Some(Step::Having(Path::parse(text.trim().strip_prefix('@')?)?));
    };
    let (left, right) = (&text[..place], &text[place + sign.len()..]);
    Some(Step::Filter(operand(left)?, comparison, operand(right)?))
}

fn operand(text: &str) -> Option<Operand> {
    let text = text.trim();
    if let Some(path) = text.strip_prefix('@') {
        return Path::parse(path).map(Operand::Path);
    }
    if let Some(text) = quoted(text) {
        return Some(Operand::Literal(Value::from(text)));
    }
    serde_json::from_str(text).ok().map(Operand::Literal)
}

impl Operand {
    fn value<'a>(&'a self, item: &'a Value) -> Option<&'a Value> {
        match self {
            Self::Path(path) => path.first(item),
            Self::Literal(value) => Some(value),
        }
    }
}

impl Comparison {
    fn holds(self, left: &Value, right: &Value) -> bool {
        let order = value::compare(left, right);
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
        }
    }
}

impl Step {
    fn values<'a>(&'a self, value: &'a Value) -> Vec<&'a Value> {
        match self {
            Self::Field(name) => value.get(name).into_iter().collect(),
            Self::All => entries(value),
            Self::Below => below(value),
            Self::Index(index) => item(value, *index).into_iter().collect(),
            Self::Slice(from, to, step) => slice(value, *from, *to, *step),
            Self::Union(steps) => steps.iter().flat_map(|step| step.values(value)).collect(),
            Self::Having(path) => entries(value)
                .into_iter()
                .filter(|item| path.first(item).is_some())
                .collect(),
            Self::Filter(left, comparison, right) => entries(value)
                .into_iter()
                .filter(|item| match (left.value(item), right.value(item)) {
                    (Some(left), Some(right)) => comparison.holds(left, right),
                    _ => false,
                })
                .collect(),
        }
    }
}

fn entries(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    }
}

fn below(value: &Value) -> Vec<&Value> {
    let mut found = vec![value];
    for entry in entries(value) {
        found.extend(below(entry));
    }
    found
}

fn item(value: &Value, index: i64) -> Option<&Value> {
    let items = value.as_array()?;
    let length = i64::try_from(items.len()).ok()?;
    let index = if index < 0 { index + length } else { index };
    items.get(usize::try_from(index).ok()?)
}

fn slice(value: &Value, from: Option<i64>, to: Option<i64>, step: i64) -> Vec<&Value> {
    let Some(items) = value.as_array() else {
        return Vec::new();
    };
    let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
    let place = |bound: i64| (if bound < 0 { bound + length } else { bound }).clamp(0, length);
    let (from, to) = (place(from.unwrap_or(0)), place(to.unwrap_or(length)));
    let Ok(step) = usize::try_from(step.max(1)) else {
        return Vec::new();
    };
    (from..to)
        .step_by(step)
        .filter_map(|index| items.get(usize::try_from(index).ok()?))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_show_the_values_of_their_paths() {
        let object = json!({
            "metadata": {"annotations": {"a.b/c": "dotted"}, "creationTimestamp": "2024-01-01T00:00:00Z"},
            "spec": {"n": 3, "f": 2.5, "yes": true, "list": ["a", "b", "c"], "map": {"k": 1}, "null": null},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "weight": 1},
                {"type": "Stalled", "status": "False", "weight": 5}]},
        });
        for (ty, path, wanted) in [
            ("integer", ".spec.n", Cell::Value(json!(3))),
            ("integer", ".spec.f", Cell::Value(json!(2))),
            ("number", ".spec.f", Cell::Value(json!(2.5))),
            ("boolean", ".spec.yes", Cell::Value(json!(true))),
            ("boolean", ".spec.n", Cell::Empty),
            ("string", ".spec.n", Cell::Value(json!("3"))),
            ("string", ".spec.list", Cell::Value(json!(r#"["a","b","c"]"#))),
            ("string", ".spec.map", Cell::Value(json!(r#"{"k":1}"#))),
            ("string", ".spec.list[0]", Cell::Value(json!("a"))),
            ("string", ".spec.list[-1]", Cell::Value(json!("c"))),
            ("string", ".spec.list[1:]", Cell::Value(json!("b"))),
            ("string", ".spec.list[*]", Cell::Value(json!("a"))),
            ("string", ".spec.list[5]", Cell::Empty),
            ("string", ".spec.none", Cell::Empty),
            (
                "string",
                r".metadata.annotations.a\.b/c",
                Cell::Value(json!("dotted")),
            ),
            (
                "string",
                ".metadata.annotations['a.b/c']",
                Cell::Value(json!("dotted")),
            ),
            (
                "string",
                r#".status.conditions[?(@.type=="Stalled")].status"#,
                Cell::Value(json!("False")),
            ),
            (
                "string",
                ".status.conditions[?(@.type=='None')].status",
                Cell::Empty,
            ),
            (
                "string",
                ".status.conditions[?(@.weight>1)].type",
                Cell::Value(json!("Stalled")),
            ),
            ("string", "..weight", Cell::Value(json!("1"))),
            (
                "date",
                ".metadata.creationTimestamp",
                Cell::Date("2024-01-01T00:00:00Z".to_owned()),
            ),
        ] {
            let column = Column::read(&json!({"name": "x", "type": ty, "jsonPath": path}));
            assert!(column.is_readable(), "{path}");
            assert_eq!(column.cell(&object), wanted, "{ty} {path}");
        }
        assert!(!Column::read(&json!({"name": "x", "type": "string", "jsonPath": ".a[b"})).is_readable());
    }
}
