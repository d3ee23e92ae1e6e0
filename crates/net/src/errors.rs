//! The texts of errors, without quoted credentials.
//!
//! Errors of kube quote their input: a parse error of a kubeconfig quotes the surrounding text, a failed sign-in
//! program is shown with its environment and its output, which may be a token, and an unreadable response is quoted in
//! parts. Such an error may be the source of any other error, and end in a log, a condition or on a terminal. All texts
//! of errors are formatted here, and these errors are replaced.

use std::error::Error as StdError;

use kube::client::AuthError;
use kube::config::KubeconfigError;

/// Returns the text of an error and its sources, without repetitions, and without quotes of kube.
#[must_use]
pub fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let own = error.to_string();
        if let Some(words) = redacted(error) {
            // Some libraries repeat the text of the source in their own.
            return append(text.replace(&own, &words), &words);
        }
        text = append(text, &own);
        next = error.source();
    }
    text
}

/// Returns `text: part`, unless the text already ends with the part.
fn append(mut text: String, part: &str) -> String {
    if text.ends_with(part) && !text.is_empty() {
        return text;
    }
    if !text.is_empty() {
        text.push_str(": ");
    }
    text.push_str(part);
    text
}

/// Returns the replacement for an error that quotes its input, and for its sources. `None`: the error is safe.
fn redacted(error: &(dyn StdError + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<AuthError>() {
        return Some(sign_in(error));
    }
    if let Some(error) = error.downcast_ref::<KubeconfigError>() {
        return kubeconfig(error);
    }
    // A box is a separate error type, whose source is that of its content.
    let boxed = error.downcast_ref::<Box<kube::Error>>();
    request(error.downcast_ref().or(boxed.map(|error| &**error))?)
}

fn request(error: &kube::Error) -> Option<String> {
    match error {
        kube::Error::Auth(error) => Some(sign_in(error)),
        kube::Error::InferKubeconfig(error) => Some(chain(error)),
        kube::Error::SerdeError(error) => Some(format!(
            "the response is not that of a Kubernetes API server (line {}, column {})",
            error.line(),
            error.column()
        )),
        // The text of kube contains the whole status twice.
        kube::Error::Api(status) if !status.message.is_empty() => Some(status.message.clone()),
        // The address of a proxy may contain a password.
        kube::Error::ProxyProtocolUnsupported { .. } | kube::Error::ProxyProtocolDisabled { .. } => {
            Some("connections through a proxy of this kind are not supported".to_owned())
        }
        other => nested_auth_error(other).map(sign_in),
    }
}

/// Returns the failed sign-in that caused a failed request.
fn nested_auth_error(error: &kube::Error) -> Option<&AuthError> {
    let mut next = error.source();
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        if let Some(kube::Error::Auth(found)) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

fn kubeconfig(error: &KubeconfigError) -> Option<String> {
    match error {
        KubeconfigError::Parse(error) => {
            let at = error.location();
            let (line, column) = at.map_or((0, 0), |at| (at.line(), at.column()));
            Some(format!("it is not a kubeconfig (line {line}, column {column})"))
        }
        // The context of the error already contains the path.
        KubeconfigError::ReadConfig(error, _) => Some(error.to_string()),
        KubeconfigError::ParseProxyUrl(_) => Some("its proxy-url is not a URL".to_owned()),
        _ => None,
    }
}

fn sign_in(error: &AuthError) -> String {
    match error {
        // `cmd` is the whole command line with its environment.
        AuthError::AuthExecRun { cmd: _, out } => {
            format!("the sign-in program of the kubeconfig failed ({})", out.status)
        }
        AuthError::AuthExecStart(error) => {
            format!("the sign-in program of the kubeconfig cannot be started: {error}")
        }
        AuthError::AuthExecParse(_) | AuthError::ExecPluginFailed => {
            "the sign-in program of the kubeconfig printed no ExecCredential".to_owned()
        }
        AuthError::ReadTokenFile(error, path) => {
            format!("the token file {} cannot be read: {error}", path.display())
        }
        AuthError::NoValidNativeRootCA(_) => "this machine trusts no certificate authority".to_owned(),
        // The other errors may quote a header, a key or a response.
        _ => "the sign-in that the kubeconfig describes does not work; try kubectl with the same context"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{ExitStatus, Output};

    use anyhow::Context as _;
    use kube::config::Kubeconfig;
    use kube::core::Status;
    use kube::runtime::watcher;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("list Clusters")]
    struct Hub {
        #[source]
        source: Box<kube::Error>,
    }

    #[derive(Debug, thiserror::Error)]
    #[error("list Clusters: {0}")]
    struct Nested(#[source] kube::Error);

    fn exec() -> AuthError {
        AuthError::AuthExecRun {
            cmd: "TOKEN=s3cret aws".into(),
            out: Box::new(Output {
                status: ExitStatus::from_raw(256),
                stdout: b"s3cret".to_vec(),
                stderr: b"s3cret".to_vec(),
            }),
        }
    }

    fn unreadable() -> KubeconfigError {
        Kubeconfig::from_yaml("users:\n- name: a\n  user: {token: [s3cret}\n").unwrap_err()
    }

    fn garbled() -> kube::Error {
        let error = serde_json::from_str::<u8>("\n\"s3cret\"").unwrap_err();
        assert!(error.to_string().contains("s3cret"));
        kube::Error::SerdeError(error)
    }

    fn proxy() -> kube::Error {
        kube::Error::ProxyProtocolUnsupported {
            proxy_url: Box::new("ftp://me:s3cret@h".parse().unwrap()),
        }
    }

    type Shape = (&'static str, fn() -> kube::Error, &'static str);

    /// Each error with its expected text.
    const SHAPES: [Shape; 7] = [
        (
            "auth",
            || kube::Error::Auth(exec()),
            "the sign-in program of the kubeconfig failed (exit status: 1)",
        ),
        (
            "auth in a service",
            || kube::Error::Service(Box::new(exec())),
            "the sign-in program of the kubeconfig failed (exit status: 1)",
        ),
        (
            "a whole error in a service",
            || kube::Error::Service(Box::new(kube::Error::Auth(exec()))),
            "the sign-in program of the kubeconfig failed (exit status: 1)",
        ),
        (
            "a command",
            || kube::Error::Auth(AuthError::AuthExec("s3cret".into())),
            "try kubectl with the same context",
        ),
        (
            "a kubeconfig",
            || kube::Error::InferKubeconfig(unreadable()),
            "it is not a kubeconfig (line 3,",
        ),
        ("a response", garbled, "API server (line 2,"),
        ("a proxy", proxy, "a proxy of this kind"),
    ];

    #[test]
    fn quoting_errors_of_kube_are_redacted_at_any_depth() {
        for (name, make, expected) in SHAPES {
            let context = Err::<(), _>(make()).context("--kubeconfig f").unwrap_err();
            let watch = Err::<(), _>(watcher::Error::WatchStartFailed(make()));
            for (text, what) in [
                (chain(&make()), ""),
                (chain(&Box::new(make())), ""),
                (
                    chain(&Hub {
                        source: Box::new(make()),
                    }),
                    "list Clusters: ",
                ),
                (chain(&Nested(make())), "list Clusters: "),
                (
                    chain(&watcher::Error::WatchFailed(make())),
                    "watch stream failed: ",
                ),
                (
                    chain(&watcher::Error::InitialListFailed(make())),
                    "failed to perform initial object list: ",
                ),
                (chain(context.as_ref()), "--kubeconfig f: "),
                (
                    chain(watch.context("watch").unwrap_err().as_ref()),
                    "watch: failed to start watching object: ",
                ),
            ] {
                assert!(!text.contains("s3cret"), "{name}: {text}");
                assert!(text.starts_with(what), "{name}: {text}");
                assert_eq!(text.matches(expected).count(), 1, "{name}: {text}");
            }
        }
    }

    #[test]
    fn errors_outside_of_requests_are_redacted_too() {
        let context = Err::<(), _>(unreadable()).context("--kubeconfig f").unwrap_err();
        for text in [chain(&exec()), chain(&unreadable()), chain(context.as_ref())] {
            assert!(!text.contains("s3cret"), "{text}");
            assert!(
                text.contains("exit status: 1") || text.contains("it is not a kubeconfig (line 3"),
                "{text}"
            );
        }
    }

    #[test]
    fn the_error_of_a_server_is_its_message() {
        let error = Hub {
            source: Box::new(kube::Error::Api(
                Status::failure("no such thing", "NotFound").boxed(),
            )),
        };
        assert_eq!(chain(&error), "list Clusters: no such thing");
    }

    #[test]
    fn no_text_is_repeated() {
        let refused = || kube::Error::Service(Box::new(io::Error::other("refused")));
        assert_eq!(chain(&refused()), "ServiceError: refused");
        let text = Err::<(), _>(refused()).context("outer").context("first");
        let text = chain(text.unwrap_err().as_ref());
        assert_eq!(text, "first: outer: ServiceError: refused");
    }
}
