//! The compilation of expressions: which variables they have, and what the interpreter needs to evaluate them as cel-go
//! does.

use std::collections::BTreeMap;
use std::sync::Arc;

use starling_cel::Metered;
use starling_cel::cel::common::ast::{
    CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators,
};

use crate::crd::rules::{Type, compile_in};

/// The variable that holds `authorizer.requestResource`, which is a variable of its own in Kubernetes.
pub(super) const REQUEST_RESOURCE: &str = "@requestResource";
/// The function that evaluates a variable of the policy when it is first used.
pub(super) const VARIABLE: &str = "@variable";
/// The variable that holds the variables of the policy.
pub(super) const VARIABLES: &str = "@variables";

/// The variables of the request.
pub(super) const NAMES: [&str; 6] = [
    "object",
    "oldObject",
    "request",
    "namespaceObject",
    "params",
    "authorizer",
];

/// The type that the result of an expression must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Anything,
    Bool,
    String,
    TextOrNull,
}

/// A compiled program, or why there is none.
pub(super) type Program = Result<Arc<Metered>, String>;

/// A compiled expression.
#[derive(Debug)]
pub(super) struct Expression {
    pub(super) source: String,
    pub(super) program: Program,
    /// The type of the result; `None` if the expression does not compile.
    pub(super) ty: Option<Type>,
    /// Which of [`NAMES`], [`REQUEST_RESOURCE`] and [`VARIABLES`] it uses.
    pub(super) uses: Vec<&'static str>,
}

/// The variables that an expression can use.
#[derive(Debug, Clone)]
pub(super) struct Environment {
    has_params: bool,
    has_authorizer: bool,
    variables: BTreeMap<String, Type>,
}

impl Environment {
    /// Returns the environment of a policy without variables of its own.
    pub(super) fn new(has_params: bool) -> Self {
        Self {
            has_params,
            has_authorizer: true,
            variables: BTreeMap::new(),
        }
    }

    /// Returns the environment of message expressions.
    pub(super) fn without_authorizer(&self) -> Self {
        Self {
            has_authorizer: false,
            ..self.clone()
        }
    }

    /// Adds a variable of the policy. One that does not compile has any type, so that only its own error is reported.
    pub(super) fn declare(&mut self, name: &str, ty: Option<Type>) {
        self.variables
            .insert(name.to_owned(), ty.unwrap_or(Type::Unknown));
    }

    fn scope(&self) -> Vec<(String, Type)> {
        let mut scope = vec![
            ("object".to_owned(), Type::Dyn),
            ("oldObject".to_owned(), Type::Dyn),
            ("request".to_owned(), request_type()),
            ("namespaceObject".to_owned(), namespace_type()),
        ];
        if !self.variables.is_empty() {
            let variables = Type::Object(Arc::new(self.variables.clone()));
            scope.push(("variables".to_owned(), variables));
        }
        if self.has_params {
            scope.push(("params".to_owned(), Type::Dyn));
        }
        if self.has_authorizer {
            scope.push(("authorizer".to_owned(), Type::Unknown));
        }
        scope
    }
}

fn object(fields: &[(&str, Type)]) -> Type {
    let fields = fields.iter().map(|(name, ty)| ((*name).to_owned(), ty.clone()));
    Type::Object(Arc::new(fields.collect()))
}

fn map(values: Type) -> Type {
    Type::Map(Box::new(Type::String), Box::new(values))
}

/// Returns the type of `request`; Kubernetes: `BuildRequestType`.
fn request_type() -> Type {
    let kind = object(&[
        ("group", Type::String),
        ("version", Type::String),
        ("kind", Type::String),
    ]);
    let resource = object(&[
        ("group", Type::String),
        ("version", Type::String),
        ("resource", Type::String),
    ]);
    let texts = Type::List(Box::new(Type::String));
    let user = object(&[
        ("username", Type::String),
        ("uid", Type::String),
        ("groups", texts.clone()),
        ("extra", map(texts)),
    ]);
    object(&[
        ("kind", kind.clone()),
        ("resource", resource.clone()),
        ("subResource", Type::String),
        ("requestKind", kind),
        ("requestResource", resource),
        ("requestSubResource", Type::String),
        ("name", Type::String),
        ("namespace", Type::String),
        ("operation", Type::String),
        ("userInfo", user),
        ("dryRun", Type::Bool),
        ("options", Type::Dyn),
    ])
}

/// Returns the type of `namespaceObject`; Kubernetes: `BuildNamespaceType`.
fn namespace_type() -> Type {
    let metadata = object(&[
        ("name", Type::String),
        ("generateName", Type::String),
        ("namespace", Type::String),
        ("labels", map(Type::String)),
        ("annotations", map(Type::String)),
        ("UID", Type::String),
        ("creationTimestamp", Type::Unknown),
        ("deletionGracePeriodSeconds", Type::Int),
        ("deletionTimestamp", Type::Unknown),
        ("generation", Type::Int),
        ("resourceVersion", Type::String),
        ("finalizers", Type::List(Box::new(Type::String))),
    ]);
    object(&[
        ("metadata", metadata),
        (
            "spec",
            object(&[("finalizers", Type::List(Box::new(Type::String)))]),
        ),
        ("status", object(&[("phase", Type::String)])),
    ])
}

impl Wanted {
    /// Returns what is wrong with the type of a result, in the text of Kubernetes. Types that are not known pass: only
    /// the result can tell.
    fn refuses(self, found: &Type) -> Option<String> {
        let (fits, wanted) = match self {
            Self::Anything => return None,
            Self::Bool => (*found == Type::Bool, "bool"),
            Self::String => (*found == Type::String, "string"),
            Self::TextOrNull => (
                matches!(found, Type::String | Type::Null),
                "one of [string null_type]",
            ),
        };
        (!fits && *found != Type::Unknown).then(|| format!("must evaluate to {wanted} but got {found}"))
    }
}

impl Expression {
    /// Compiles an expression.
    pub(super) fn of(source: &str, environment: &Environment, wanted: Wanted) -> Self {
        let compiled = compile_in(source, environment.scope())
            .map_err(|issues| format!("compilation failed: {issues}"))
            .and_then(|(program, ty)| match wanted.refuses(&ty) {
                Some(why) => Err(why),
                None => Ok((program, ty)),
            });
        let (program, ty, uses) = match compiled {
            Ok((mut program, ty)) => {
                let uses = Rewriting::default().of(&mut program);
                (Ok(Arc::new(Metered::new(&program))), Some(ty), uses)
            }
            Err(why) => (Err(why), None, Vec::new()),
        };
        Self {
            source: source.to_owned(),
            program,
            ty,
            uses,
        }
    }
}

/// Rewrites a program for the interpreter, which differs from cel-go in three ways: a field of what is no map is
/// `false` instead of an error (`a.b` becomes `a['b']`, which fails), it has no qualified variables
/// (`authorizer.requestResource`), and none that are evaluated when they are used (`variables.x`).
#[derive(Default)]
struct Rewriting {
    /// The variables of the loops around an expression.
    bound: Vec<String>,
    uses: Vec<&'static str>,
}

impl Rewriting {
    fn of(mut self, program: &mut IdedExpr) -> Vec<&'static str> {
        self.rewrite(program);
        self.uses
    }

    fn uses(&mut self, name: &'static str) {
        if !self.uses.contains(&name) {
            self.uses.push(name);
        }
    }

    fn rewrite(&mut self, expr: &mut IdedExpr) {
        match &mut expr.expr {
            Expr::Ident(name) => {
                if !self.bound.contains(name)
                    && let Some(known) = NAMES.iter().find(|known| *known == name)
                {
                    self.uses(known);
                }
            }
            Expr::Call(call) => {
                call.target.iter_mut().for_each(|target| self.rewrite(target));
                call.args.iter_mut().for_each(|argument| self.rewrite(argument));
            }
            Expr::Comprehension(it) => {
                self.rewrite(&mut it.iter_range);
                self.rewrite(&mut it.accu_init);
                let depth = self.bound.len();
                self.bound.push(it.accu_var.clone());
                self.bound.push(it.iter_var.clone());
                self.bound.extend(it.iter_var2.clone());
                self.rewrite(&mut it.loop_cond);
                self.rewrite(&mut it.loop_step);
                self.rewrite(&mut it.result);
                self.bound.truncate(depth);
            }
            Expr::List(list) => list.elements.iter_mut().for_each(|item| self.rewrite(item)),
            Expr::Map(map) => {
                for entry in &mut map.entries {
                    if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                        self.rewrite(&mut entry.key);
                        self.rewrite(&mut entry.value);
                    }
                }
            }
            Expr::Select(_) => self.select(expr),
            Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => {}
        }
    }

    fn select(&mut self, expr: &mut IdedExpr) {
        let Expr::Select(select) = &mut expr.expr else {
            return;
        };
        if let Some(qualified) = self.qualified(select) {
            expr.expr = qualified;
            return;
        }
        self.rewrite(&mut select.operand);
        if select.test {
            return;
        }
        let operand = std::mem::replace(&mut *select.operand, of_expr(Expr::Unspecified));
        let field = text(std::mem::take(&mut select.field));
        expr.expr = call(operators::INDEX, vec![operand, field]);
    }

    /// Returns what stands for `authorizer.requestResource` and `variables.x`.
    fn qualified(&mut self, select: &SelectExpr) -> Option<Expr> {
        let Expr::Ident(name) = &select.operand.expr else {
            return None;
        };
        if self.bound.contains(name) {
            return None;
        }
        match (&**name, &*select.field) {
            ("authorizer", "requestResource") => {
                self.uses(REQUEST_RESOURCE);
                Some(Expr::Ident(REQUEST_RESOURCE.to_owned()))
            }
            ("variables", field) => {
                self.uses(VARIABLES);
                // The checker has refused variables that are not declared.
                Some(if select.test {
                    Expr::Literal(LiteralValue::Boolean(true.into()))
                } else {
                    call(VARIABLE, vec![text(field.to_owned())])
                })
            }
            _ => None,
        }
    }
}

fn of_expr(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

fn text(text: String) -> IdedExpr {
    of_expr(Expr::Literal(LiteralValue::String(text.into())))
}

fn call(name: &str, args: Vec<IdedExpr>) -> Expr {
    Expr::Call(CallExpr {
        func_name: name.to_owned(),
        target: None,
        args,
    })
}
