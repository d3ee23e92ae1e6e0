use serde_json::json;

use super::*;

/// Evaluates a policy for an object, by a user who may do nothing.
fn denials(spec: &Value, object: &Value) -> Vec<(String, String)> {
    let who = crate::rbac::Who {
        name: "ann",
        groups: &[],
    };
    let authorizer = authorizer::Authorizer::new(who, Some(Arc::default()));
    let values = Values {
        object: to_cel(object),
        old_object: Cel::Null,
        request: to_cel(&json!({"namespace": "a"})),
        namespace_object: Cel::Null,
        params: Cel::Null,
        request_resource: authorizer.clone().into_value(),
        authorizer: authorizer.into_value(),
    };
    let policy = Policy::of("p", &json!({"spec": spec}));
    evaluate(&Arc::new(policy), values)
        .into_iter()
        .map(|denial| (denial.reason, denial.message))
        .collect()
}

fn messages(spec: &Value, object: &Value) -> Vec<String> {
    denials(spec, object)
        .into_iter()
        .map(|(_, message)| message)
        .collect()
}

/// Nested loops of ten million steps.
fn endless() -> String {
    let digits = "[0,1,2,3,4,5,6,7,8,9]";
    let open: String = ["a", "b", "c", "d", "e", "f", "g"]
        .iter()
        .map(|name| format!("{digits}.all({name}, "))
        .collect();
    format!("{open}g >= 0{}", ")".repeat(7))
}

#[test]
fn a_violation_has_the_reason_and_the_best_message() {
    let spec = json!({"validations": [
        {"expression": "object.x != 1", "reason": "Forbidden", "messageExpression": "'x is ' + string(object.x)"},
        {"expression": "object.x != 1", "messageExpression": "object.none", "message": " text "},
        {"expression": " object.x != 1 ", "messageExpression": "'two\\nlines'"},
        {"expression": "object.x != 2"},
    ]});
    let wanted = [
        ("Forbidden", "x is 1"),
        ("", "text"),
        ("", "failed expression: object.x != 1"),
    ];
    let wanted = wanted.map(|(reason, message)| (reason.to_owned(), message.to_owned()));
    assert_eq!(denials(&spec, &json!({"x": 1})), wanted);
    assert!(denials(&spec, &json!({"x": 3})).is_empty());
}

#[test]
fn tenant_what_cannot_be_evaluated_is_denied_unless_the_policy_ignores_failures() {
    for (expression, error) in [
        ("object.none == 1", "no such key: none"),
        // The interpreter takes a field of what is no map for false.
        ("!oldObject.spec", "no such overload"),
        ("!object.x.y", "no such overload"),
    ] {
        let spec =
            |failure: &str| json!({"failurePolicy": failure, "validations": [{"expression": expression}]});
        let text = format!("expression '{expression}' resulted in error: {error}");
        assert_eq!(messages(&spec("Fail"), &json!({"x": 1})), [text]);
        assert!(
            messages(&spec("Ignore"), &json!({"x": 1})).is_empty(),
            "{expression}"
        );
    }
}

#[test]
fn tenant_an_expression_beyond_its_cost_ends_with_the_failure_policy() {
    let spec = |failure: &str| json!({"failurePolicy": failure, "validations": [{"expression": endless()}]});
    let found = messages(&spec("Fail"), &json!({}));
    assert!(
        found[0].ends_with("operation cancelled: actual cost limit exceeded"),
        "{found:?}"
    );
    assert!(messages(&spec("Ignore"), &json!({})).is_empty());
    let condition = json!({"matchConditions": [{"name": "a", "expression": endless()}],
        "validations": [{"expression": "true"}]});
    let found = messages(&condition, &json!({}));
    assert!(found[0].ends_with("actual cost limit exceeded"), "{found:?}");
}

#[test]
fn tenant_the_expressions_of_a_policy_share_a_budget() {
    let check = "!authorizer.group('').resource('pods').check('get').allowed() && \
        !authorizer.group('').resource('pods').check('list').allowed()";
    let validations = |count: usize| vec![json!({"expression": check}); count];
    assert!(messages(&json!({"validations": validations(14)}), &json!({})).is_empty());
    let found = messages(&json!({"validations": validations(15)}), &json!({}));
    assert_eq!(found, [out_of_budget()]);
}

#[test]
fn conditions_exclude_before_they_fail() {
    let spec = json!({
        "matchConditions": [
            {"name": "fails", "expression": "object.none == 1"},
            {"name": "excludes", "expression": "object.x != 1"},
        ],
        "validations": [{"expression": "false"}],
    });
    assert!(messages(&spec, &json!({"x": 1})).is_empty());
    let error = "expression 'object.none == 1' resulted in error: no such key: none";
    assert_eq!(messages(&spec, &json!({"x": 2})), [error]);
    assert_eq!(
        messages(&spec, &json!({"x": 2, "none": 1})),
        ["failed expression: false"]
    );
}

#[test]
fn variables_are_evaluated_where_they_are_used() {
    let spec = json!({
        "variables": [
            {"name": "x", "expression": "object.x"},
            {"name": "broken", "expression": "object.none"},
            {"name": "twice", "expression": "variables.x + variables.x"},
        ],
        "validations": [{"expression": "variables.twice == 2 || variables.broken == 3"}],
    });
    assert!(messages(&spec, &json!({"x": 1})).is_empty());
    assert!(messages(&spec, &json!({"x": 2, "none": 3})).is_empty());
    let found = messages(&spec, &json!({"x": 2}));
    let error = "composited variable \"broken\" fails to evaluate: no such key: none";
    assert!(found[0].ends_with(error), "{found:?}");
    // A variable of a loop hides them.
    let hidden = json!({"validations": [{"expression": "[{'a': 1}].all(variables, variables.a == 1)"}]});
    assert!(messages(&hidden, &json!({})).is_empty());
}

#[test]
fn a_policy_that_does_not_compile_says_where() {
    let causes = crate::admission::check_policy(&json!({"spec": {
        "variables": [{"name": "a", "expression": "1 +"}, {"name": "b", "expression": "variables.a"}],
        "matchConditions": [{"name": "a", "expression": "1"}],
        "validations": [
            {"expression": "other", "messageExpression": "authorizer.path('/').check('get').reason()"},
            {"expression": "variables.c == variables.a", "reason": "Unauthorized"},
        ],
    }}));
    let fields: Vec<_> = causes.iter().map(|cause| cause.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "spec.variables[0].expression",
            "spec.matchConditions[0].expression",
            "spec.validations[0].expression",
            "spec.validations[0].messageExpression",
            "spec.validations[1].expression",
            "spec.validations[1].reason",
        ]
    );
    let message = "Invalid value: \"1\": must evaluate to bool but got int";
    assert_eq!(causes[1].message, message);
}

#[test]
fn conditions_are_evaluated_before_variables_are_declared() {
    let causes = crate::admission::check_policy(&json!({"spec": {
        "variables": [{"name": "a", "expression": "1"}],
        "matchConditions": [{"name": "a", "expression": "variables.a == 1"}],
        "validations": [{"expression": "variables.a == 1"}],
    }}));
    let [cause] = causes.as_slice() else {
        panic!("{causes:?}")
    };
    assert_eq!(cause.field, "spec.matchConditions[0].expression");
    assert!(
        cause.message.contains("undeclared reference to 'variables'"),
        "{cause}"
    );
}
