//! A partial type checker of rules: undeclared fields, operators on values of the wrong type.
//!
//! cel-rust has no type checker, and the API server rejects definitions by the errors of cel-go's. This checker knows
//! the types of schemas, operators, macros and common functions, and treats everything else as unknown, so that it
//! never rejects a rule that the API server accepts. Texts are those of cel-go; positions are found by searching the
//! source text.

use starling_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators,
};
use starling_cel::cel::parser::Parser;

use super::functions::TYPES;
use super::issues::{CompileError, Issue, Issues, TypeError};
use super::names::{FUNCTIONS, MACROS, NAMESPACES};
use super::types::{Type, common};
use crate::crd::pattern;

/// Parses an expression and checks its types; `self` has the given type.
pub(super) fn compile(
    source: &str,
    ty: Option<&Type>,
    optional_old: bool,
    wanted: &Type,
) -> Result<IdedExpr, CompileError> {
    let this = ty.cloned().unwrap_or(Type::Unknown);
    let old = if optional_old { Type::Unknown } else { this.clone() };
    let scope = vec![("self".to_owned(), this), ("oldSelf".to_owned(), old)];
    let (expression, found) = compile_in(source, scope)?;
    if found != Type::Unknown && found != *wanted {
        return Err(CompileError::Result);
    }
    Ok(expression)
}

/// Parses an expression and checks its types; `scope` has the variables. Returns the type of the result as well.
pub(crate) fn compile_in(source: &str, scope: Vec<(String, Type)>) -> Result<(IdedExpr, Type), Issues> {
    let mut expression = Parser::new()
        .enable_optional_syntax(true)
        .parse(source)
        .map_err(Issues::Syntax)?;
    let mut checker = Checker {
        source,
        scopes: scope,
        issues: Vec::new(),
    };
    let found = checker.type_of(&expression);
    if !checker.issues.is_empty() {
        return Err(Issues::Types(checker.issues));
    }
    select_by_index(&mut expression);
    Ok((expression, found))
}

/// Rewrites `a.?b` as `a[?'b']`, which is equivalent: the runtime fails on the former if `b` is missing.
fn select_by_index(expression: &mut IdedExpr) {
    match &mut expression.expr {
        Expr::Call(call) => {
            if call.func_name == operators::OPT_SELECT {
                operators::OPT_INDEX.clone_into(&mut call.func_name);
            }
            call.target.iter_mut().for_each(|target| select_by_index(target));
            call.args.iter_mut().for_each(select_by_index);
        }
        Expr::Comprehension(it) => {
            let it = it.as_mut();
            for part in [
                &mut it.iter_range,
                &mut it.accu_init,
                &mut it.loop_cond,
                &mut it.loop_step,
                &mut it.result,
            ] {
                select_by_index(part);
            }
        }
        Expr::List(list) => list.elements.iter_mut().for_each(select_by_index),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    select_by_index(&mut entry.key);
                    select_by_index(&mut entry.value);
                }
            }
        }
        Expr::Select(select) => select_by_index(&mut select.operand),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => {}
    }
}

struct Checker<'a> {
    source: &'a str,
    /// The variables in scope, the innermost last.
    scopes: Vec<(String, Type)>,
    issues: Vec<Issue>,
}

impl Checker<'_> {
    /// Reports an error at the first occurrence of a text; for calls, at the opening bracket.
    fn report(&mut self, at: &str, error: TypeError) {
        let name = at.strip_suffix('(').map_or(0, str::len);
        let offset = self.find(at).map_or(0, |offset| offset + name);
        self.report_at(offset, error);
    }

    fn report_at(&mut self, offset: usize, error: TypeError) {
        let before = &self.source[..offset];
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |place| place + 1);
        let column = self.source[start..offset].chars().count() + 1;
        let text = self.source[start..].lines().next().unwrap_or_default();
        self.issues.push(Issue {
            error,
            line,
            column,
            text: text.to_owned(),
        });
    }

    /// Finds a text that is not part of a longer name.
    fn find(&self, text: &str) -> Option<usize> {
        let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
        self.source
            .match_indices(text)
            .map(|(place, _)| place)
            .find(|place| {
                let before = self.source[..*place].chars().next_back();
                let after = self.source[place + text.len()..].chars().next();
                let continues = text.starts_with(is_name) && before.is_some_and(is_name)
                    || text.ends_with(is_name) && after.is_some_and(is_name);
                !continues
            })
    }

    fn type_of(&mut self, expression: &IdedExpr) -> Type {
        match &expression.expr {
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(_) => Type::Bool,
                LiteralValue::Bytes(_) => Type::Bytes,
                LiteralValue::Double(_) => Type::Double,
                LiteralValue::Int(_) => Type::Int,
                LiteralValue::Null => Type::Null,
                LiteralValue::String(_) => Type::String,
                LiteralValue::UInt(_) => Type::Uint,
            },
            Expr::Ident(name) => self.name(name),
            Expr::Select(select) => self.select(select),
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::List(list) => {
                let types: Vec<_> = list.elements.iter().map(|item| self.type_of(item)).collect();
                Type::List(Box::new(common(&types)))
            }
            Expr::Map(_) => Type::Map(Box::new(Type::Unknown), Box::new(Type::Unknown)),
            Expr::Struct(_) | Expr::Unspecified => Type::Unknown,
        }
    }

    fn name(&mut self, name: &str) -> Type {
        if let Some((_, ty)) = self.scopes.iter().rev().find(|(known, _)| known == name) {
            return ty.clone();
        }
        if TYPES.contains(&name) {
            return Type::OfTypes;
        }
        self.report(
            name,
            TypeError::Undeclared {
                name: name.to_owned(),
            },
        );
        Type::Unknown
    }

    fn select(&mut self, select: &SelectExpr) -> Type {
        let operand = self.type_of(&select.operand);
        let field = &select.field;
        let found = match &operand {
            Type::Object(fields) => match fields.get(field) {
                Some(ty) => ty.clone(),
                None => {
                    let error = TypeError::UndefinedField { field: field.clone() };
                    self.report(&format!(".{field}"), error);
                    Type::Unknown
                }
            },
            Type::Map(_, value) => (**value).clone(),
            open if open.is_open() => open.clone(),
            other => {
                let error = TypeError::NoFields { ty: other.clone() };
                self.report(&format!(".{field}"), error);
                Type::Unknown
            }
        };
        if select.test { Type::Bool } else { found }
    }

    fn comprehension(&mut self, it: &ComprehensionExpr) -> Type {
        let range = self.type_of(&it.iter_range);
        let (first, second) = match &range {
            Type::List(item) => ((**item).clone(), Type::Unknown),
            Type::Map(key, value) => ((**key).clone(), (**value).clone()),
            Type::Object(_) => (Type::String, Type::Unknown),
            open if open.is_open() => (Type::Unknown, Type::Unknown),
            other => {
                self.report(".", TypeError::NoRange { ty: other.clone() });
                (Type::Unknown, Type::Unknown)
            }
        };
        let depth = self.scopes.len();
        let start = self.type_of(&it.accu_init);
        let first = if it.iter_var2.is_some() {
            Type::Unknown
        } else {
            first
        };
        self.scopes.push((it.accu_var.clone(), start));
        self.scopes.push((it.iter_var.clone(), first));
        if let Some(name) = &it.iter_var2 {
            self.scopes.push((name.clone(), second));
        }
        self.type_of(&it.loop_cond);
        let step = self.type_of(&it.loop_step);
        self.scopes.truncate(depth);
        self.scopes.push((it.accu_var.clone(), step));
        let result = self.type_of(&it.result);
        self.scopes.truncate(depth);
        result
    }

    fn call(&mut self, call: &CallExpr) -> Type {
        let name = call.func_name.as_str();
        let namespace = match call.target.as_deref() {
            Some(IdedExpr {
                expr: Expr::Ident(target),
                ..
            }) => {
                NAMESPACES.contains(&target.as_str()) && !self.scopes.iter().any(|(known, _)| known == target)
            }
            _ => false,
        };
        let mut types = Vec::with_capacity(call.args.len() + 1);
        if let Some(target) = call.target.as_deref().filter(|_| !namespace) {
            types.push(self.type_of(target));
        }
        if MACROS.contains(&name) {
            // The parser expands the macros that it knows; the arguments of others bind variables.
            return Type::Unknown;
        }
        for argument in &call.args {
            types.push(self.type_of(argument));
        }
        if name.starts_with(|char: char| !char.is_alphabetic()) {
            return self.operator(name, &types);
        }
        if !FUNCTIONS.contains(&name) {
            self.report(
                &format!("{name}("),
                TypeError::Undeclared {
                    name: name.to_owned(),
                },
            );
            return Type::Unknown;
        }
        if namespace {
            return Type::Unknown;
        }
        if name == "matches" {
            self.check_regex(call);
        }
        self.function(name, &types, call.target.is_some())
    }

    /// Checks a literal regular expression.
    fn check_regex(&mut self, call: &CallExpr) {
        let Some(Expr::Literal(LiteralValue::String(text))) = call.args.last().map(|last| &last.expr) else {
            return;
        };
        if pattern::compile(text.inner()).is_err() {
            let offset = self
                .find("matches(")
                .map_or(0, |offset| offset + "matches(".len());
            self.report_at(offset, TypeError::InvalidPattern);
        }
    }

    /// Reports a missing overload; `target` says whether the first type is that of the receiver.
    fn no_overload(&mut self, sign: &str, name: &str, types: &[Type], target: bool) {
        let error = TypeError::NoOverload {
            name: name.to_owned(),
            types: types.to_vec(),
            target,
        };
        self.report(sign, error);
    }

    fn operator(&mut self, name: &str, types: &[Type]) -> Type {
        let sign = name.trim_matches('_');
        let open = types.iter().any(Type::is_open);
        let (fits, result) = match (name, types) {
            ("@not_strictly_false", _) => (true, Type::Bool),
            ("!_", [ty]) => (*ty == Type::Bool, Type::Bool),
            ("-_", [ty]) => (matches!(ty, Type::Int | Type::Double), ty.clone()),
            ("_&&_" | "_||_", _) => (
                types.iter().all(|ty| ty.is_open() || *ty == Type::Bool),
                Type::Bool,
            ),
            ("_?_:_", [condition, left, right]) => {
                let fits = (condition.is_open() || *condition == Type::Bool) && left.may_equal(right);
                (fits, common(&[left.clone(), right.clone()]))
            }
            ("_==_" | "_!=_", [left, right]) => (left.may_equal(right), Type::Bool),
            ("_<_" | "_<=_" | "_>_" | "_>=_", [left, right]) => {
                let ordered = matches!(
                    left,
                    Type::Bool | Type::String | Type::Bytes | Type::Duration | Type::Timestamp
                );
                let fits = left.is_number() && right.is_number() || ordered && left == right;
                (fits || open, Type::Bool)
            }
            ("@in", [item, list]) => match list {
                Type::List(of) => (item.may_equal(of), Type::Bool),
                Type::Map(key, _) => (item.may_equal(key), Type::Bool),
                list => (list.is_open() || matches!(list, Type::Object(_)), Type::Bool),
            },
            ("_[_]", [Type::List(item), index]) => (index.is_open() || index.is_number(), (**item).clone()),
            ("_[_]", [Type::Map(_, value), _]) => (true, (**value).clone()),
            ("_[_]", [Type::Dyn, _]) => (true, Type::Dyn),
            ("_+_" | "_-_" | "_*_" | "_/_" | "_%_", [left, right]) => arithmetic(name, left, right),
            _ => (true, Type::Unknown),
        };
        // The operands of these three operators are checked separately.
        let lenient = open && !matches!(name, "_&&_" | "_||_" | "_?_:_");
        if !(fits || lenient) {
            self.no_overload(sign, name, types, false);
            return Type::Unknown;
        }
        result
    }

    fn function(&mut self, name: &str, types: &[Type], target: bool) -> Type {
        let open = types.iter().any(Type::is_open);
        let text = |count| types.len() == count && types.iter().all(|ty| *ty == Type::String);
        let (fits, result) = match name {
            "size" => {
                let sized = types.len() == 1
                    && matches!(
                        types[0],
                        Type::String | Type::Bytes | Type::List(_) | Type::Map(..)
                    );
                (sized, Type::Int)
            }
            "startsWith" | "endsWith" | "contains" | "matches" => (text(2), Type::Bool),
            "lowerAscii" | "upperAscii" | "trim" => (text(1), Type::String),
            "reverse" => match types {
                [list @ Type::List(_)] => (true, list.clone()),
                _ => (false, Type::Unknown),
            },
            "type" => (true, Type::OfTypes),
            "dyn" => (true, Type::Dyn),
            "bool" => (true, Type::Bool),
            "int" => (true, Type::Int),
            "uint" => (true, Type::Uint),
            "double" => (true, Type::Double),
            "string" => (true, Type::String),
            "bytes" => (true, Type::Bytes),
            "duration" => (true, Type::Duration),
            "timestamp" => (true, Type::Timestamp),
            "isURL" | "isIP" | "isCIDR" | "isQuantity" | "isSemver" | "isSorted" | "hasValue" => {
                (true, Type::Bool)
            }
            "split" | "findAll" => (true, Type::List(Box::new(Type::String))),
            "join" | "replace" | "charAt" | "substring" | "find" => (true, Type::String),
            _ => (true, Type::Unknown),
        };
        if !fits && !open {
            self.no_overload(&format!("{name}("), name, types, target);
            return Type::Unknown;
        }
        result
    }
}

fn arithmetic(name: &str, left: &Type, right: &Type) -> (bool, Type) {
    let time = |ty: &Type| matches!(ty, Type::Duration | Type::Timestamp);
    match (left, right) {
        (left, right) if left.is_open() || right.is_open() => (true, Type::Unknown),
        (left, right) if left == right && left.is_number() => {
            (name != "_%_" || *left != Type::Double, left.clone())
        }
        (Type::String | Type::Bytes, _) if left == right && name == "_+_" => (true, left.clone()),
        (Type::List(left), Type::List(right)) if name == "_+_" => (
            true,
            Type::List(Box::new(common(&[(**left).clone(), (**right).clone()]))),
        ),
        (left, right) if time(left) && time(right) && matches!(name, "_+_" | "_-_") => (true, Type::Unknown),
        _ => (false, Type::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::types::of_schema;
    use super::*;
    use crate::crd::schema::Schema;

    fn problem(source: &str) -> String {
        let schema = Schema::read(&json!({"type": "object", "properties": {
            "n": {"type": "integer"}, "s": {"type": "string"}, "l": {"type": "array", "items": {"type": "string"}},
            "m": {"type": "object", "additionalProperties": {"type": "integer"}},
            "o": {"type": "object", "properties": {"x": {"type": "boolean"}}},
            "ios": {"x-kubernetes-int-or-string": true}}}));
        let ty = of_schema(&schema, true);
        match compile(source, ty.as_ref(), false, &Type::Bool) {
            Ok(_) => String::new(),
            Err(CompileError::Issues(issues)) => issues.to_string(),
            Err(CompileError::Result) => "result".to_owned(),
        }
    }

    #[test]
    fn rules_that_the_api_server_accepts_are_accepted() {
        for source in [
            "self.n > 0 && self.s.startsWith('a')",
            "self.l.all(x, x.size() > 0 && x in ['a', 'b'])",
            "self.l.map(x, size(x)).sum() == 3",
            "self.m.all(k, self.m[k] > 0)",
            "has(self.o) && self.o.x || !has(self.s)",
            "type(self.ios) == string ? self.ios != '0%' : self.ios > 0",
            "[has(self.n), has(self.s)].filter(x, x).size() == 1",
            "self.metadata.name.matches('^a')",
            "oldSelf.n <= self.n && quantity('1Gi').isGreaterThan(quantity('1Mi'))",
            "self.l.exists_one(x, x == 'a') && self.n % 2 == 0 && self.n / 2 < 3.5",
            "self.?s.orValue('') != ''",
            "self.l.sortBy(x, x)[0] == 'a'",
            "self.s == self.s + '' && double(self.n) > 0.5 && sets.contains(self.l, ['a'])",
        ] {
            assert_eq!(problem(source), "", "{source}");
        }
    }

    #[test]
    fn type_errors_match_those_of_cel_go() {
        for (source, wanted) in [
            (
                "self.none",
                "ERROR: <input>:1:5: undefined field 'none'\n | self.none\n | ....^",
            ),
            (
                "other > 1",
                "ERROR: <input>:1:1: undeclared reference to 'other' (in container '')\n | other > 1\n | ^",
            ),
            (
                "self.n > 'a'",
                "ERROR: <input>:1:8: found no matching overload for '_>_' applied to '(int, string)'\n | self.n > 'a'\n | .......^",
            ),
            (
                "self.s == 1",
                "ERROR: <input>:1:8: found no matching overload for '_==_' applied to '(string, int)'\n | self.s == 1\n | .......^",
            ),
            ("self.n", "result"),
            (
                "self.s.length() > 0",
                "ERROR: <input>:1:14: undeclared reference to 'length' (in container '')\n | self.s.length() > 0\n | .............^",
            ),
        ] {
            assert_eq!(problem(source), wanted, "{source}");
        }
        assert!(
            problem("self.n >").starts_with("ERROR: <input>:1:9: Syntax error:"),
            "{}",
            problem("self.n >")
        );
    }
}
