//! Says what went wrong between this machine and a cluster, without quoting what may hold a credential.
//!
//! kube's errors quote: a parse error of a kubeconfig shows the text around it, and a sign-in program that failed is
//! shown with all that it printed, which may be a token. So those are said in other words, and only the rest as it is.

use std::error::Error as StdError;

use anyhow::anyhow;
use kube::client::AuthError;
use kube::config::KubeconfigError;
use kube::runtime::watcher;

/// The path of the request is not served: not a missing object, a missing kind.
#[derive(Debug, thiserror::Error)]
#[error("the cluster does not have this kind")]
pub(super) struct NotServed;

/// Why a kubeconfig cannot be read.
pub(super) fn kubeconfig(error: &KubeconfigError) -> anyhow::Error {
    match error {
        KubeconfigError::Parse(error) => {
            let at = error.location();
            let (line, column) = at.map_or((0, 0), |at| (at.line(), at.column()));
            anyhow!("it is not a kubeconfig (line {line}, column {column})")
        }
        KubeconfigError::ReadConfig(error, _) => anyhow!("{error}"),
        KubeconfigError::ParseProxyUrl(_) => anyhow!("its proxy-url is not a URL"),
        other => anyhow!("{}", crate::chain(other)),
    }
}

/// Why a request was not answered as it should be.
pub(super) fn request(error: kube::Error) -> anyhow::Error {
    if let kube::Error::Api(status) = &error {
        // A missing object is answered by a Status that names it.
        if status.code == 404 && status.details.is_none() {
            return anyhow::Error::new(NotServed);
        }
        return anyhow!("{}", status.message);
    }
    if let Some(auth) = auth_error(&error) {
        return sign_in(auth);
    }
    match error {
        kube::Error::InferKubeconfig(error) => kubeconfig(&error),
        kube::Error::SerdeError(error) => anyhow!(
            "the answer is not what a Kubernetes API server gives (line {}, column {})",
            error.line(),
            error.column()
        ),
        other => anyhow!("{}", crate::chain(&other)),
    }
}

/// Why a watch ended for good.
pub(super) fn watch(error: watcher::Error) -> anyhow::Error {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => request(error),
        watcher::Error::WatchError(status) => anyhow!("{}", status.message),
        error @ watcher::Error::NoResourceVersion => anyhow!("{}", crate::chain(&error)),
    }
}

fn auth_error(error: &kube::Error) -> Option<&AuthError> {
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<AuthError>() {
            return Some(found);
        }
        if let Some(kube::Error::Auth(found)) = error.downcast_ref::<kube::Error>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

fn sign_in(error: &AuthError) -> anyhow::Error {
    match error {
        // `cmd` is the whole command line with its environment.
        AuthError::AuthExecRun { cmd: _, out } => {
            anyhow!("the sign-in program of the kubeconfig failed ({})", out.status)
        }
        AuthError::AuthExecStart(error) => {
            anyhow!("the sign-in program of the kubeconfig cannot be started: {error}")
        }
        AuthError::AuthExecParse(_) | AuthError::ExecPluginFailed => {
            anyhow!("the sign-in program of the kubeconfig printed no ExecCredential")
        }
        AuthError::ReadTokenFile(error, path) => {
            anyhow!("the token file {} cannot be read: {error}", path.display())
        }
        AuthError::NoValidNativeRootCA(_) => anyhow!("this machine trusts no certificate authority"),
        // The others may quote a header, a key or an answer.
        _ => anyhow!(
            "the sign-in that the kubeconfig describes does not work; try kubectl with the same context"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{ExitStatus, Output};

    use kube::config::Kubeconfig;

    use super::*;

    #[test]
    fn a_sign_in_program_that_failed_is_not_quoted() {
        let out = Box::new(Output {
            status: ExitStatus::from_raw(256),
            stdout: b"s3cret".to_vec(),
            stderr: b"s3cret".to_vec(),
        });
        let failed = || AuthError::AuthExecRun {
            cmd: "TOKEN=s3cret aws".into(),
            out: out.clone(),
        };
        for error in [
            kube::Error::Auth(failed()),
            kube::Error::Service(Box::new(failed())),
        ] {
            let text = format!("{:#}", request(error));
            assert!(text.contains("exit status: 1"), "{text}");
            assert!(!text.contains("s3cret"), "{text}");
        }
    }

    #[test]
    fn a_kubeconfig_that_cannot_be_read_is_not_quoted() {
        let error = Kubeconfig::from_yaml("users:\n- name: a\n  user: {token: [s3cret}\n").unwrap_err();
        let text = format!("{:#}", kubeconfig(&error));
        assert!(text.contains("line 3") && !text.contains("s3cret"), "{text}");
    }
}
