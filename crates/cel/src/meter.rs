//! Adds calls of the meter to a program.
//!
//! - `@value(E)` evaluates `E` and charges the size of the result. It encloses what makes or copies a value: lists,
//!   maps, fields, elements, what a comprehension iterates over, and what a step of it accumulates.
//! - `@call(F(@0, …), A0, …)` evaluates the arguments, charges what the call costs with them, and calls the function.
//! - `@step(N, C)` charges `N` before it evaluates the condition of a loop: the nodes of the body that nothing else
//!   charges.
//!
//! `&&`, `||` and `?:` stay as they are, because they do not evaluate all of their arguments.

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, ListExpr, LiteralValue,
    MapEntryExpr, MapExpr, SelectExpr, operators,
};
use kube_cel::cel::{Context, ExecutionError, FunctionContext, Value};

use crate::{budget, cost, size};

/// Names that no expression can contain.
const VALUE: &str = "@value";
const CALL: &str = "@call";
const STEP: &str = "@step";
const TARGET: &str = "@target";

/// The maximum number of nodes of a program without a meter. Each of them copies the largest variable at most.
const CHEAP_NODES: usize = 64;

/// Adds the functions of the meter to a context.
pub(crate) fn register(context: &mut Context<'_>) {
    context.add_function(VALUE, value);
    context.add_function(CALL, call);
    context.add_function(STEP, step);
}

/// Returns the program with the meter.
pub(crate) fn metered(program: &IdedExpr) -> IdedExpr {
    let expr = match &program.expr {
        Expr::Call(call) => return metered_call(program.id, call),
        Expr::Comprehension(comprehension) => metered_loop(comprehension),
        Expr::List(list) => enclosed(Expr::List(ListExpr {
            elements: list.elements.iter().map(metered).collect(),
            optional_indices: list.optional_indices.clone(),
        })),
        Expr::Map(map) => enclosed(Expr::Map(MapExpr {
            entries: map.entries.iter().map(metered_entry).collect(),
        })),
        Expr::Select(select) => {
            let tested = select.test;
            let select = Expr::Select(SelectExpr {
                operand: Box::new(metered(&select.operand)),
                field: select.field.clone(),
                test: tested,
            });
            if tested { select } else { enclosed(select) }
        }
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) => program.expr.clone(),
    };
    IdedExpr { id: program.id, expr }
}

fn metered_entry(entry: &IdedEntryExpr) -> IdedEntryExpr {
    let expr = match &entry.expr {
        EntryExpr::MapEntry(entry) => EntryExpr::MapEntry(MapEntryExpr {
            key: metered(&entry.key),
            value: metered(&entry.value),
            optional: entry.optional,
        }),
        EntryExpr::StructField(_) => entry.expr.clone(),
    };
    IdedEntryExpr { id: entry.id, expr }
}

fn metered_loop(comprehension: &ComprehensionExpr) -> Expr {
    let nodes = nodes(&comprehension.loop_cond) + nodes(&comprehension.loop_step);
    let condition = metered(&comprehension.loop_cond);
    let count = i64::try_from(nodes).unwrap_or(i64::MAX);
    Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: of_expr(enclosed(metered(&comprehension.iter_range).expr)),
        iter_var: comprehension.iter_var.clone(),
        iter_var2: comprehension.iter_var2.clone(),
        accu_var: comprehension.accu_var.clone(),
        accu_init: metered(&comprehension.accu_init),
        loop_cond: of_expr(of_function(
            STEP,
            vec![of_expr(Expr::Literal(LiteralValue::Int(count.into()))), condition],
        )),
        loop_step: of_expr(enclosed(metered(&comprehension.loop_step).expr)),
        result: metered(&comprehension.result),
    }))
}

fn metered_call(id: u64, call: &CallExpr) -> IdedExpr {
    let args: Vec<IdedExpr> = call.args.iter().map(metered).collect();
    let plain = |target: Option<IdedExpr>, args: Vec<IdedExpr>| IdedExpr {
        id,
        expr: Expr::Call(CallExpr {
            func_name: call.func_name.clone(),
            target: target.map(Box::new),
            args,
        }),
    };
    match call.func_name.as_str() {
        operators::LOGICAL_AND
        | operators::LOGICAL_OR
        | operators::CONDITIONAL
        | operators::LOGICAL_NOT
        | operators::NOT_STRICTLY_FALSE => return plain(call.target.as_deref().map(metered), args),
        operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT => {
            return of_expr(enclosed(plain(call.target.as_deref().map(metered), args).expr));
        }
        _ => {}
    }
    let names = (0..args.len())
        .map(|index| of_expr(Expr::Ident(format!("@{index}"))))
        .collect();
    // An identifier stays where it is: it may be the first half of the name of a function, as in `sets.contains`.
    let (target, first) = match call.target.as_deref() {
        None => (None, None),
        Some(target) => match &target.expr {
            Expr::Ident(_) => (Some(target.clone()), Some(target.clone())),
            _ => (
                Some(of_expr(Expr::Ident(TARGET.to_owned()))),
                Some(metered(target)),
            ),
        },
    };
    let mut passed = vec![plain(target, names)];
    passed.extend(first);
    passed.extend(args);
    of_expr(of_function(CALL, passed))
}

fn enclosed(expr: Expr) -> Expr {
    match &expr {
        Expr::Call(call) if matches!(call.func_name.as_str(), VALUE | CALL) => expr,
        _ => of_function(VALUE, vec![of_expr(expr)]),
    }
}

fn of_function(name: &str, args: Vec<IdedExpr>) -> Expr {
    Expr::Call(CallExpr {
        func_name: name.to_owned(),
        target: None,
        args,
    })
}

fn of_expr(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

/// Returns whether a program needs no meter: it has no loop, few nodes, and calls only what reads its arguments.
pub(crate) fn is_cheap(program: &IdedExpr) -> bool {
    nodes(program) <= CHEAP_NODES && reads_only(program)
}

fn reads_only(program: &IdedExpr) -> bool {
    match &program.expr {
        Expr::Call(call) => {
            cost::reads_only(&call.func_name)
                && call.target.as_deref().is_none_or(reads_only)
                && call.args.iter().all(reads_only)
        }
        Expr::Select(select) => reads_only(&select.operand),
        Expr::List(list) => list.elements.iter().all(reads_only),
        Expr::Ident(_) | Expr::Literal(_) => true,
        Expr::Comprehension(_) | Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => false,
    }
}

/// Counts the nodes that one pass through an expression evaluates, without the bodies of loops in it.
fn nodes(program: &IdedExpr) -> usize {
    1 + match &program.expr {
        Expr::Call(call) => {
            call.target.as_deref().map_or(0, nodes) + call.args.iter().map(nodes).sum::<usize>()
        }
        Expr::Comprehension(comprehension) => {
            nodes(&comprehension.iter_range) + nodes(&comprehension.accu_init) + nodes(&comprehension.result)
        }
        Expr::List(list) => list.elements.iter().map(nodes).sum(),
        Expr::Map(map) => map
            .entries
            .iter()
            .map(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => nodes(&entry.key) + nodes(&entry.value),
                EntryExpr::StructField(_) => 0,
            })
            .sum(),
        Expr::Select(select) => nodes(&select.operand),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) => 0,
    }
}

fn argument<'call>(
    call: &FunctionContext<'_, 'call>,
    index: usize,
) -> Result<&'call IdedExpr, ExecutionError> {
    let count = call.args.len();
    call.args
        .get(index)
        .ok_or_else(|| ExecutionError::invalid_argument_count(index + 1, count))
}

fn value(call: &FunctionContext<'_, '_>) -> Result<Value, ExecutionError> {
    budget::charge(1)?;
    let value = call.ptx.resolve(argument(call, 0)?)?;
    budget::charge_value(size::of(&value))?;
    Ok(value)
}

fn step(call: &FunctionContext<'_, '_>) -> Result<Value, ExecutionError> {
    if let Expr::Literal(LiteralValue::Int(nodes)) = &argument(call, 0)?.expr {
        budget::charge(u64::try_from(*nodes.inner()).unwrap_or(0))?;
    }
    call.ptx.resolve(argument(call, 1)?)
}

fn call(call: &FunctionContext<'_, '_>) -> Result<Value, ExecutionError> {
    let template = argument(call, 0)?;
    let Expr::Call(function) = &template.expr else {
        return Err(call.error("is called without a function"));
    };
    let mut scope = call.ptx.new_inner_scope();
    let mut values = Vec::with_capacity(call.args.len());
    let mut rest = call.args.get(1..).unwrap_or_default().iter();
    let mut name = function.func_name.clone();
    if let Some(target) = function.target.as_deref() {
        let given = rest.next();
        match &target.expr {
            Expr::Ident(prefix) if prefix != TARGET => match call.ptx.get_variable(prefix) {
                Some(_) => values.push(call.ptx.resolve(target)?),
                None => name = format!("{prefix}.{name}"),
            },
            _ => {
                let value = given.map_or(Ok(Value::Null), |given| call.ptx.resolve(given))?;
                scope.add_variable_from_value(TARGET, value.clone());
                values.push(value);
            }
        }
    }
    for (index, argument) in rest.enumerate() {
        let value = call.ptx.resolve(argument)?;
        scope.add_variable_from_value(format!("@{index}"), value.clone());
        values.push(value);
    }
    let cost = cost::of_call(&name, &values);
    budget::charge(cost.work.max(1))?;
    budget::charge_value(cost.result)?;
    drop(values);
    let result = scope.resolve(template)?;
    budget::charge_value(size::of(&result))?;
    Ok(result)
}
