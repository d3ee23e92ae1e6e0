use std::time::{Duration, Instant};

use super::*;

const SMALL: Budget = Budget {
    cost: 100_000,
    time: Duration::from_secs(60),
};

fn context() -> Context<'static> {
    let mut context = Context::default();
    register(&mut context);
    context
}

fn run(source: &str, budget: Budget) -> Result<Value, RunError> {
    Metered::compile(source).unwrap().run(&context(), budget)
}

fn nested(depth: usize, body: &str) -> String {
    (0..depth).fold(body.to_owned(), |body, level| {
        format!("[0,1,2,3,4,5,6,7,8,9].all(v{level}, {body})")
    })
}

fn limit(source: &str) -> Limit {
    match run(source, SMALL) {
        Err(RunError::Limit(limit)) => limit,
        other => panic!("{source}: {other:?}"),
    }
}

#[test]
fn what_the_meter_adds_changes_no_result() {
    let mut plain = Context::default();
    plain.register_all();
    for source in [
        "1 + 2 * 3 - 4 / 2 % 3",
        "-(1 + 1)",
        "'a' + 'b' == 'ab' && !(1 > 2) || false",
        "true ? 'x' : 1 / 0 == 1 ? 'y' : 'z'",
        "[1, 2, 3].map(x, x * 2)",
        "[1, 2, 3].map(x, x > 1, x * 2)",
        "[1, 2, 3].filter(x, x >= 2).size()",
        "[1, 2].exists(x, [3, 4].all(y, x < y))",
        "[1, 2, 2].exists_one(x, x == 1)",
        "{'a': {'b': [1, 2]}}.a.b[1]",
        "{'a': 1}['a'] in [1, 2]",
        "has({'a': 1}.a) && !has({'a': 1}.b)",
        "{'a': 1}.b",
        "[1][3]",
        "1 / 0",
        "size('abc') + 'abc'.size()",
        "'a,b'.split(',').map(x, x.upperAscii()).join('-')",
        "sets.contains([1, 2], [2])",
        "lists.range(3)",
        "'abc'.replace('b', 'xx')",
        "'%s has %d'.format(['a', 1])",
        "quantity('1Ki').isGreaterThan(quantity('1k'))",
        "semver('1.2.3').major()",
        "[1, 'a'].size() == 2 ? dyn(1) : 2",
        "missing",
        "missing(1)",
        "'a'.missing(1)",
        "size(1, 2)",
        "'a' < 1",
        "false && missing",
        "[1, 2].all(x, x > 0 || missing)",
        "'a'.matches('[')",
        "optional.of(1).hasValue()",
        "[?optional.none(), 1]",
        "{'a': 1}[?'b'].orValue(2)",
        "{'a': 1}.?b.orValue(2)",
    ] {
        let Ok(program) = Parser::default().enable_optional_syntax(true).parse(source) else {
            panic!("{source} does not parse");
        };
        let expected = Value::resolve(&program, &plain);
        let seen = Metered::new(&program).run(&context(), Budget::default());
        match (&expected, &seen) {
            (Ok(expected), Ok(seen)) => assert_eq!(expected, seen, "{source}"),
            (Err(expected), Err(RunError::Execution(seen))) => {
                assert_eq!(expected.to_string(), seen.to_string(), "{source}");
            }
            _ => panic!("{source}: {expected:?} and, with the meter, {seen:?}"),
        }
    }
}

#[test]
fn loops_within_loops_end_at_the_limit() {
    let source = nested(10, "v0 >= 0");
    let began = Instant::now();
    let result = run(&source, Budget::default());
    assert!(
        matches!(result, Err(RunError::Limit(Limit::Cost(5_000_000)))),
        "{result:?}"
    );
    // A minute is far more than the second that this takes, and far less than the years of the expression itself.
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn an_error_that_the_expression_ignores_ends_it_as_well() {
    assert_eq!(
        limit(&format!("{} || true", nested(10, "true"))),
        Limit::Cost(100_000)
    );
    assert_eq!(
        limit(&nested(10, "v0 > 100 || 1 / 0 == 0 || true")),
        Limit::Cost(100_000)
    );
}

#[test]
fn what_would_fill_the_memory_is_refused_before_it_is_made() {
    let huge = "x".repeat(300);
    let replaced = (0..12).fold(format!("'{huge}'"), |text, _| {
        format!("{text}.replace('x', '{huge}')")
    });
    for source in [
        "lists.range(1000000000000)".to_owned(),
        "'%.1000000000f'.format([1.0])".to_owned(),
        "'%.60000f'.format([1.0]).size() > lists.range(90000).size() * 2".to_owned(),
        replaced
            .chars()
            .take(MAX_LENGTH)
            .collect::<String>()
            .rsplit_once(".replace")
            .unwrap()
            .0
            .to_owned(),
        "lists.range(1000).map(a, lists.range(1000).map(b, lists.range(1000)))".to_owned(),
        format!("lists.range(100).map(a, '{huge}').join('{huge}').split('').map(c, '{huge}')"),
        "lists.range(2000).map(x, {'a': lists.range(2000)})".to_owned(),
        "[lists.range(90000)].map(x, [x, x, x, x, x, x])".to_owned(),
        "lists.range(5000).distinct().size() > 0".to_owned(),
        "lists.range(10000).all(x, 'a'.matches('(a{9}){9}') || true)".to_owned(),
    ] {
        assert!(matches!(limit(&source), Limit::Cost(_) | Limit::Size), "{source}");
    }
}

#[test]
fn fields_that_are_read_again_and_again_cost_what_is_copied() {
    // Each `x.a` copies the list of 10,000 elements.
    assert_eq!(
        limit("[{'a': {'b': lists.range(10000)}}].all(x, lists.range(1000).all(i, x.a.b.size() > 0))"),
        Limit::Cost(100_000)
    );
}

#[test]
fn a_value_has_a_maximum_size() {
    let large = Budget {
        cost: u64::MAX,
        ..SMALL
    };
    let result = run("lists.range(1000000).size()", large);
    assert!(matches!(result, Err(RunError::Limit(Limit::Size))), "{result:?}");
    assert_eq!(
        run("lists.range(200000).size()", large).unwrap(),
        Value::Int(200_000)
    );
}

#[test]
fn time_ends_an_evaluation_too() {
    let late = Budget {
        cost: u64::MAX,
        time: Duration::ZERO,
    };
    let result = run(&nested(10, "true"), late);
    assert!(
        matches!(result, Err(RunError::Limit(Limit::Time(_)))),
        "{result:?}"
    );
}

#[test]
fn a_usual_expression_is_far_from_the_limit() {
    for source in [
        "lists.range(500).filter(x, x % 2 == 0).size() == 250",
        "lists.range(2000).all(x, x >= 0 && string(x).matches('^[0-9]+$'))",
    ] {
        assert_eq!(
            run(source, Budget::default()).unwrap(),
            Value::Bool(true),
            "{source}"
        );
    }
}

#[test]
fn a_long_expression_is_not_parsed() {
    let source = "(".repeat(MAX_LENGTH + 1);
    assert_eq!(
        Metered::compile(&source),
        Err(CompileError::TooLong(MAX_LENGTH + 1))
    );
    assert!(matches!(Metered::compile("1 +"), Err(CompileError::Syntax(_))));
}

#[test]
fn the_deepest_expression_fits_the_stack_of_a_thread() {
    let deep =
        |open: &str, close: &str, depth: usize| format!("{}true{}", open.repeat(depth), close.repeat(depth));
    let sources: Vec<String> = [10, 30, 60, 80, 90, 94, 95, 96, 97, 98, 100, 200, 1_000]
        .into_iter()
        .flat_map(|depth| {
            [
                deep("[", "]", depth),
                deep("!(", ")", depth),
                deep("[1].all(x, ", ")", depth),
                format!("{} == true", deep("{'a': ", "}", depth)),
            ]
        })
        .filter(|source| source.len() <= MAX_LENGTH)
        .collect();
    let thread = std::thread::Builder::new().stack_size(STACK_SIZE).spawn(move || {
        let context = context();
        for source in &sources {
            if let Ok(program) = Metered::compile(source) {
                let _ = program.run(&context, SMALL);
            }
        }
    });
    thread.unwrap().join().unwrap();
}
