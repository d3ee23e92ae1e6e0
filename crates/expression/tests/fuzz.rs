//! Tests of metrics and responses of a Prometheus, mutated: whatever it is, the end is a result.

use starling_expression::metric;

/// The first line is the test, the rest is the response.
#[test]
fn tenant_fuzz_cel() {
    starling_fuzz::inputs!("cel", |input| {
        let text = String::from_utf8_lossy(input);
        let (test, response) = text.split_once('\n').unwrap_or((&text, "{}"));
        let _ = metric::check(test);
        for status in [200, 503] {
            let _ = metric::judge(status, response.as_bytes(), test);
        }
    });
}
