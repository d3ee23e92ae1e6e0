//! Kubeconfigs, mutated: whatever it is, the end is a result.

use starling_member::MemberConfig;

#[test]
fn tenant_fuzz_kubeconfigs() {
    starling_fuzz::inputs!("kubeconfigs", |input| {
        let text = String::from_utf8_lossy(input);
        if let Err(error) = MemberConfig::from_kubeconfig(&text) {
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("secret-value"), "{shown}");
        }
    });
}
