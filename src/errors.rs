//! What errors say, without quoting what may hold a credential.
//!
//! kube's errors quote: a parse error of a kubeconfig shows the text around it, a sign-in program that failed is shown with its
//! environment and with all that it printed, which may be a token, and an answer that cannot be read is shown in parts. Such an
//! error may be below any other one and end in a log, a condition or on a terminal; so it is here, where all texts are made, that
//! they are said in other words.

use std::error::Error as StdError;

use kube::client::AuthError;
use kube::config::KubeconfigError;

/// The text of an error and of all that is behind it, without saying anything twice, and without what kube quotes.
#[must_use]
pub fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let own = error.to_string();
        if let Some(words) = in_other_words(error) {
            // Some libraries put their source's text into their own.
            return joined(text.replace(&own, &words), &words);
        }
        text = joined(text, &own);
        next = error.source();
    }
    text
}

/// `text: part`, unless the text says it already.
fn joined(mut text: String, part: &str) -> String {
    if text.ends_with(part) && !text.is_empty() {
        return text;
    }
    if !text.is_empty() {
        text.push_str(": ");
    }
    text.push_str(part);
    text
}

/// What is said instead of an error that quotes, and of all that is behind it; `None`: it may be said as it is.
fn in_other_words(error: &(dyn StdError + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<AuthError>() {
        return Some(sign_in(error));
    }
    if let Some(error) = error.downcast_ref::<KubeconfigError>() {
        return kubeconfig(error);
    }
    // A box is an error of its own, and its source is that of what is in it.
    let boxed = error.downcast_ref::<Box<kube::Error>>();
    request(error.downcast_ref().or(boxed.map(|error| &**error))?)
}

fn request(error: &kube::Error) -> Option<String> {
    match error {
        kube::Error::Auth(error) => Some(sign_in(error)),
        kube::Error::InferKubeconfig(error) => Some(chain(error)),
        kube::Error::SerdeError(error) => Some(format!(
            "the answer is not what a Kubernetes API server gives (line {}, column {})",
            error.line(),
            error.column()
        )),
        // The whole status stands in kube's text, twice.
        kube::Error::Api(status) if !status.message.is_empty() => Some(status.message.clone()),
        // The address of a proxy may have a password in it.
        kube::Error::ProxyProtocolUnsupported { .. } | kube::Error::ProxyProtocolDisabled { .. } => {
            Some("connections through a proxy of this kind are not supported".to_owned())
        }
        other => beneath(other).map(sign_in),
    }
}

/// The failed sign-in that a request ended with.
fn beneath(error: &kube::Error) -> Option<&AuthError> {
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
        // Which file it is stands in front of it.
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
        // The others may quote a header, a key or an answer.
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

    /// Each with what is said of it.
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
        ("an answer", garbled, "API server gives (line 2,"),
        ("a proxy", proxy, "a proxy of this kind"),
    ];

    #[test]
    fn what_kube_quotes_is_said_in_other_words_wherever_it_is() {
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
    fn what_is_no_request_is_not_quoted_either() {
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
    fn an_answer_of_the_server_is_its_message() {
        let error = Hub {
            source: Box::new(kube::Error::Api(
                Status::failure("no such thing", "NotFound").boxed(),
            )),
        };
        assert_eq!(chain(&error), "list Clusters: no such thing");
    }

    #[test]
    fn nothing_is_said_twice() {
        let refused = || kube::Error::Service(Box::new(io::Error::other("refused")));
        assert_eq!(chain(&refused()), "ServiceError: refused");
        let text = Err::<(), _>(refused()).context("outer").context("first");
        let text = chain(text.unwrap_err().as_ref());
        assert_eq!(text, "first: outer: ServiceError: refused");
    }
}
