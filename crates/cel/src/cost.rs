//! The costs of functions and operators, known before they run.
//!
//! The source is Kubernetes' `CostEstimator` (`k8s.io/apiserver/pkg/cel/library/cost.go`) and cel-go's runtime costs.
//! A function that is not in the table costs the square of the size of its arguments, which is an upper bound of what
//! any of them does.

use kube_cel::cel::Value;
use kube_cel::cel::common::ast::operators;

use crate::size::{of as size, of_text, units};

/// The cost of compiling a regular expression, for each byte of the pattern.
const REGEX_BYTE: u64 = 50;
/// A counted repetition multiplies what is compiled.
const REGEX_REPETITION: u64 = 100;

/// The cost of asking an authorizer; Kubernetes: `check` in `CallCost`.
const AUTHORIZATION: u64 = 350_000;

/// The cost of a call, and the maximum size of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    /// The work, in units.
    pub(crate) work: u64,
    /// The size of the result that is known before the call; 0 if the result is not larger than the arguments.
    pub(crate) result: u64,
}

impl Cost {
    fn work(work: u64) -> Self {
        Self { work, result: 0 }
    }

    fn both(units: u64) -> Self {
        Self {
            work: units,
            result: units,
        }
    }
}

/// Returns the cost of a call. `arguments` begins with the target of a method.
pub(crate) fn of_call(name: &str, arguments: &[Value]) -> Cost {
    let sum = arguments
        .iter()
        .fold(1, |sum: u64, value| sum.saturating_add(size(value)));
    match name {
        operators::ADD => Cost::both(sum),
        "replace" => Cost::both(replaced(arguments)),
        "join" => Cost::both(joined(arguments).saturating_add(sum)),
        // One element for each byte, if the separator is empty.
        "split" => Cost::both(sum.saturating_add(length(arguments.first()))),
        "findAll" => Cost::both(sum.saturating_add(length(arguments.first()))).plus_regex(arguments),
        "lists.range" => Cost::both(number(arguments.first())),
        "format" => Cost::both(formatted(arguments).saturating_add(sum)),
        "matches" | "find" => Cost::work(sum).plus_regex(arguments),
        "sort" | "isSorted" => Cost::work(sum.saturating_mul(16)),
        "base64.encode" | "base64.decode" | "strings.quote" | "jsonpatch.escapeKey" => {
            Cost::both(sum.saturating_mul(2))
        }
        "check" => Cost::work(AUTHORIZATION),
        name if visits_once(name) => Cost::work(sum),
        "charAt" | "lowerAscii" | "upperAscii" | "trim" | "substring" | "reverse" | "slice" | "flatten"
        | "sum" | "min" | "max" | "first" | "last" | "uint" | "bytes" | "semver" | "isSemver" | "url"
        | "isURL" | "ip" | "isIP" | "cidr" | "isCIDR" | "@variable" | "path" | "group" | "serviceAccount"
        | "resource" | "subresource" | "namespace" | "name" | "fieldSelector" | "labelSelector"
        | "allowed" | "reason" | "errored" | "error" => Cost::work(sum),
        _ => Cost::work(sum.saturating_mul(sum)),
    }
}

/// Returns whether a call visits its arguments once, makes nothing that is larger than they are, and is common in
/// validation rules.
fn visits_once(name: &str) -> bool {
    matches!(
        name,
        operators::EQUALS
            | operators::NOT_EQUALS
            | operators::LESS
            | operators::LESS_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS
            | operators::IN
            | operators::SUBSTRACT
            | operators::MULTIPLY
            | operators::DIVIDE
            | operators::MODULO
            | operators::NEGATE
            | "size"
            | "contains"
            | "startsWith"
            | "endsWith"
            | "string"
            | "int"
            | "double"
            | "duration"
            | "timestamp"
            | "quantity"
            | "isQuantity"
    )
}

/// Returns whether a call needs no meter in a small program: it visits its arguments once, chooses among them, or
/// compares values of a fixed size.
pub(crate) fn reads_only(name: &str) -> bool {
    visits_once(name)
        || matches!(
            name,
            operators::LOGICAL_AND
                | operators::LOGICAL_OR
                | operators::LOGICAL_NOT
                | operators::CONDITIONAL
                | operators::INDEX
                | "isGreaterThan"
                | "isLessThan"
                | "compareTo"
                | "value"
                | "hasValue"
                | "orValue"
        )
}

impl Cost {
    /// Adds the compilation and the use of the pattern, which is the second argument.
    fn plus_regex(self, arguments: &[Value]) -> Self {
        let [text, Value::String(pattern), ..] = arguments else {
            return self;
        };
        let bytes = units(pattern.len());
        let repetition = if pattern.contains('{') {
            REGEX_REPETITION
        } else {
            1
        };
        let compile = bytes.saturating_mul(REGEX_BYTE).saturating_mul(repetition);
        // cel-go: the cost of the text times a quarter of the length of the pattern.
        let search = size(text).saturating_mul(1 + bytes / 4);
        Self {
            work: self.work.saturating_add(compile).saturating_add(search),
            ..self
        }
    }
}

/// The length of a text in bytes; 0 for other values.
fn length(value: Option<&Value>) -> u64 {
    match value {
        Some(Value::String(text)) => units(text.len()),
        _ => 0,
    }
}

fn number(value: Option<&Value>) -> u64 {
    match value {
        Some(Value::Int(number)) => u64::try_from(*number).unwrap_or(0),
        Some(Value::UInt(number)) => *number,
        _ => 0,
    }
}

/// `TEXT.replace(FROM, TO)`: `TO` for each `FROM` in the text, and between any two bytes if `FROM` is empty.
fn replaced(arguments: &[Value]) -> u64 {
    let [text, from, to] = [0, 1, 2].map(|index| length(arguments.get(index)));
    let places = text / from.max(1) + 1;
    let bytes = places.saturating_mul(to).saturating_add(text);
    of_text(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// `LIST.join(SEPARATOR)`: a separator for each element.
fn joined(arguments: &[Value]) -> u64 {
    match arguments.first() {
        Some(Value::List(items)) => units(items.len()).saturating_mul(length(arguments.get(1))) / 10,
        _ => 0,
    }
}

/// `TEXT.format(LIST)`: the precisions in the text may make it longer, so each number in it counts as characters.
fn formatted(arguments: &[Value]) -> u64 {
    let Some(Value::String(text)) = arguments.first() else {
        return 0;
    };
    text.split(|character: char| !character.is_ascii_digit())
        .filter(|digits| !digits.is_empty())
        .fold(0, |sum: u64, digits| {
            sum.saturating_add(digits.parse().unwrap_or(u64::MAX))
        })
        / 10
}
