use super::*;

const SECRET: &str = "s3cr3t";

/// A certificate and its key in PEM, generated for these tests.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----
MIIBfTCCASOgAwIBAgIUUm0H0P3KwqcYnrZYI5ZbPVdKXyMwCgYIKoZIzj0EAwIw
-----END CERTIFICATE-----
";
const KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg
-----END PRIVATE KEY-----
";

fn pem(text: &str) -> String {
    BASE64.encode(text)
}

fn kubeconfig(cluster: &str, user: &str) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"Config","current-context":"main",
           "contexts":[{{"name":"main","context":{{"cluster":"edge","user":"admin","namespace":"x"}}}}],
           "clusters":[{{"name":"edge","cluster":{cluster}}}],
           "users":[{{"name":"admin","user":{user}}}]}}"#
    )
}

const CLUSTER: &str = r#"{"server":"https://edge.example:6443"}"#;
const USER: &str = r#"{"token":"s3cr3t"}"#;

/// Returns the error text for a kubeconfig that must be refused. Asserts that it contains no secret.
fn refusal(text: &str) -> String {
    let error = MemberConfig::from_kubeconfig(text).expect_err(text);
    assert!(!format!("{error} {error:?}").contains(SECRET), "{error}");
    error.to_string()
}

#[test]
fn a_plain_kubeconfig_is_read() {
    let yaml = "
apiVersion: v1
kind: Config
preferences: {}
contexts:
- name: only
  context: {cluster: edge, user: admin}
clusters:
- name: edge
  cluster:
    server: https://edge.example:6443/clusters/a/
    tls-server-name: kubernetes
    insecure-skip-tls-verify: false
users:
- name: admin
  user:
    token: s3cr3t
- name: other
  user: {exec: {command: never-run}}
";
    let config = MemberConfig::from_kubeconfig(yaml).unwrap();
    assert_eq!(config.server(), "https://edge.example:6443/clusters/a");
    assert_eq!(config.tls_server_name.as_deref(), Some("kubernetes"));
    assert_eq!(config.token.as_ref().map(|token| token.0.as_str()), Some(SECRET));
    assert!(config.certificate_authority.is_none() && config.identity.is_none());
    assert!(!format!("{config:?}").contains(SECRET));
}

#[test]
fn certificates_are_read() {
    let cluster = format!(
        r#"{{"server":"https://e","certificate-authority-data":"{}"}}"#,
        pem(&format!("{CERTIFICATE}{CERTIFICATE}"))
    );
    let user = format!(
        r#"{{"client-certificate-data":"{}","client-key-data":"{}"}}"#,
        pem(CERTIFICATE),
        pem(KEY)
    );
    let config = MemberConfig::from_kubeconfig(&kubeconfig(&cluster, &user)).unwrap();
    assert_eq!(
        config
            .certificate_authority
            .map(|certificates| certificates.len()),
        Some(2)
    );
    assert!(config.identity.is_some() && config.token.is_none());
}

#[test]
fn harmless_fields_are_accepted() {
    let cases = [
        (r#"{"server":"https://e","extensions":[{"name":"x"}]}"#, USER),
        (r#"{"server":"https://[::1]:6443"}"#, USER),
        (
            r#"{"server":"https://e","proxy-url":null}"#,
            r#"{"token":"s3cr3t","exec":null}"#,
        ),
        (CLUSTER, r#"{"token":"s3cr3t\n"}"#),
    ];
    for (cluster, user) in cases {
        let config = MemberConfig::from_kubeconfig(&kubeconfig(cluster, user));
        assert!(config.is_ok(), "{cluster} {user}: {config:?}");
    }
}

#[test]
fn fields_of_a_cluster_are_refused_by_name() {
    let cases = [
        (
            r#""certificate-authority":"/etc/s3cr3t""#,
            "clusters[edge].certificate-authority is not allowed",
        ),
        (
            r#""proxy-url":"http://s3cr3t""#,
            "clusters[edge].proxy-url is not allowed",
        ),
        (
            r#""insecure-skip-tls-verify":true"#,
            "clusters[edge].insecure-skip-tls-verify is not allowed",
        ),
        (
            r#""insecure-skip-tls-verify":"false""#,
            "clusters[edge].insecure-skip-tls-verify is not allowed",
        ),
        (
            r#""colour":"s3cr3t""#,
            "clusters[edge].colour is not allowed: the field is not known",
        ),
        (
            r#""Server":"s3cr3t""#,
            "clusters[edge].Server is not allowed: the field is not known",
        ),
        (
            r#""tls-server-name":7"#,
            "clusters[edge].tls-server-name must be a string",
        ),
        (
            r#""certificate-authority-data":"s3cr3t!""#,
            "clusters[edge].certificate-authority-data is not base64",
        ),
        (
            r#""certificate-authority-data":"czNjcjN0""#,
            "clusters[edge].certificate-authority-data contains no",
        ),
        (
            r#""certificate-authority-data":["s3cr3t"]"#,
            "clusters[edge].certificate-authority-data must be a",
        ),
    ];
    for (field, expected) in cases {
        let text = kubeconfig(&format!(r#"{{"server":"https://e",{field}}}"#), USER);
        let refusal = refusal(&text);
        assert!(refusal.starts_with(expected), "{field}: {refusal}");
    }
}

#[test]
fn fields_of_a_user_are_refused_by_name() {
    let cases = [
        (
            r#""exec":{"command":"s3cr3t"}"#,
            "users[admin].exec is not allowed: it runs a program",
        ),
        (
            r#""auth-provider":{"name":"gcp"}"#,
            "users[admin].auth-provider is not allowed: it runs a program",
        ),
        (
            r#""tokenFile":"/s3cr3t""#,
            "users[admin].tokenFile is not allowed",
        ),
        (
            r#""client-certificate":"/s3cr3t""#,
            "users[admin].client-certificate is not allowed",
        ),
        (
            r#""client-key":"/s3cr3t""#,
            "users[admin].client-key is not allowed",
        ),
        (r#""as":"s3cr3t""#, "users[admin].as is not allowed"),
        (r#""as-uid":"s3cr3t""#, "users[admin].as-uid is not allowed"),
        (
            r#""as-groups":["s3cr3t"]"#,
            "users[admin].as-groups is not allowed",
        ),
        (
            r#""as-user-extra":{"a":["s3cr3t"]}"#,
            "users[admin].as-user-extra is not allowed",
        ),
        (r#""username":"s3cr3t""#, "users[admin].username is not allowed"),
        (r#""password":"s3cr3t""#, "users[admin].password is not allowed"),
        (
            r#""bearer":"s3cr3t""#,
            "users[admin].bearer is not allowed: the field is not known",
        ),
        (
            r#""client-key-data":"czNjcjN0""#,
            "users[admin].client-certificate-data is missing",
        ),
        (
            r#""client-certificate-data":"czNjcjN0""#,
            "users[admin].client-key-data is missing",
        ),
        (
            r#""client-certificate-data":"czNjcjN0","client-key-data":"czNjcjN0""#,
            "users[admin].client-certificate-data contains no certificate",
        ),
    ];
    for (field, expected) in cases {
        let refusal = refusal(&kubeconfig(CLUSTER, &format!(r#"{{"token":"s3cr3t",{field}}}"#)));
        assert!(refusal.starts_with(expected), "{field}: {refusal}");
    }
}

#[test]
fn tokens_are_checked() {
    let cases = [
        (r"{}", "users[admin].token is missing"),
        (r#"{"token":""}"#, "users[admin].token is missing"),
        (r#"{"token":12345}"#, "users[admin].token must be a string"),
        (
            r#"{"token":"s3cr3t with space"}"#,
            "users[admin].token contains characters",
        ),
        (
            r#"{"token":"s3cr3t\nX-Evil: 1"}"#,
            "users[admin].token contains characters",
        ),
        (r#"{"token":"\n"}"#, "users[admin].token contains characters"),
    ];
    for (user, expected) in cases {
        let refusal = refusal(&kubeconfig(CLUSTER, user));
        assert!(refusal.starts_with(expected), "{user}: {refusal}");
    }
}

#[test]
fn the_server_is_an_https_address() {
    let cases = [
        (r"{}", "is missing"),
        (r#"{"server":""}"#, "is missing"),
        (r#"{"server":"http://s3cr3t"}"#, "must start with https://"),
        (r#"{"server":"s3cr3t"}"#, "is not a URL"),
        (r#"{"server":"s3cr3t:6443"}"#, "must start with https://"),
        (r#"{"server":"file:///etc/s3cr3t"}"#, "must start with https://"),
        (
            r#"{"server":"https://s3cr3t@e"}"#,
            "must not contain a user or password",
        ),
        (
            r#"{"server":"https://u:s3cr3t@e"}"#,
            "must not contain a user or password",
        ),
        (
            r#"{"server":"https://e?s3cr3t"}"#,
            "must not contain a query or fragment",
        ),
        (
            r#"{"server":"https://e#s3cr3t"}"#,
            "must not contain a query or fragment",
        ),
        (r#"{"server":"https://e:0"}"#, "has no host, or port 0"),
        (r#"{"server":"https://e\n.s3cr3t"}"#, "contains white space"),
        (
            r#"{"server":"https:\\\\s3cr3t"}"#,
            "contains white space, a control character or a backslash",
        ),
    ];
    for (cluster, expected) in cases {
        let refusal = refusal(&kubeconfig(cluster, USER));
        assert_eq!(
            refusal
                .split_once("clusters[edge].server ")
                .map(|(_, problem)| problem.starts_with(expected)),
            Some(true),
            "{cluster}: {refusal}"
        );
    }
}

#[test]
fn exactly_one_context_is_usable() {
    let contexts = |contexts: &str, current: &str| {
        format!(
            "contexts: {contexts}\nclusters: [{{name: e, cluster: {{server: 'https://e'}}}}]\nusers: [{{name: u, user: {{token: s3cr3t}}}}]\ncurrent-context: {current}\n"
        )
    };
    let one = "{name: a, context: {cluster: e, user: u}}";
    assert!(MemberConfig::from_kubeconfig(&contexts(&format!("[{one}]"), "''")).is_ok());
    let cases = [
        (
            contexts("[]", "''"),
            "current-context is not set and there are 0 contexts",
        ),
        (
            contexts(&format!("[{one}, {{name: b}}]"), "''"),
            "current-context is not set and there are 2 contexts",
        ),
        (contexts(&format!("[{one}]"), "b"), "contexts[b] is missing"),
        (
            contexts(&format!("[{one}, {one}]"), "a"),
            "contexts[a] occurs more than once",
        ),
        (
            contexts("[{name: a, context: {user: u}}]", "a"),
            "contexts[a].cluster is missing",
        ),
        (
            contexts("[{name: a, context: {cluster: e}}]", "a"),
            "contexts[a].user is missing",
        ),
        (
            contexts("[{name: a, context: {cluster: e, user: x}}]", "a"),
            "users[x] is missing",
        ),
        (
            contexts("[{name: a, context: {cluster: x, user: u}}]", "a"),
            "clusters[x] is missing",
        ),
        (contexts("[{name: a}]", "a"), "contexts[a].context is missing"),
        (
            contexts("[{name: a, context: 1}]", "a"),
            "contexts[a].context must be a mapping",
        ),
        (contexts("[1]", "a"), "each entry of contexts must be a mapping"),
        (contexts("1", "a"), "contexts must be a list"),
    ];
    for (text, expected) in cases {
        let refusal = refusal(&text);
        assert!(refusal.starts_with(expected), "{text}: {refusal}");
    }
}

#[test]
fn malformed_texts_are_refused_without_quoting_them() {
    let cases = [
        ("", "the kubeconfig"),
        ("s3cr3t", "the kubeconfig must be a mapping"),
        ("[s3cr3t]", "the kubeconfig must be a mapping"),
        ("token: {s3cr3t", "the kubeconfig is not valid YAML (line"),
        (
            "a: s3cr3t\na: s3cr3t\n",
            "the kubeconfig is not valid YAML (line 2",
        ),
    ];
    for (text, expected) in cases {
        let refusal = refusal(text);
        assert!(refusal.starts_with(expected), "{text}: {refusal}");
    }
    let large = format!("# {}\n", "x".repeat(SIZE_LIMIT));
    assert_eq!(
        MemberConfig::from_kubeconfig(&large).err(),
        Some(KubeconfigError::TooLarge { bytes: large.len() })
    );
}
