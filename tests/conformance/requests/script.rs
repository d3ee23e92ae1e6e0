//! The text format of steps.
//!
//! A line is a method, a path, and a body in JSON. The form of the body follows from the method; `PATCH-MERGE`,
//! `PATCH-JSON`, `PATCH-STRATEGIC` and `APPLY` name it, as do `DELETE-YAML`, and `DELETE-TEXT`. With `-PROTOBUF`, the
//! body is protobuf in base64. `UNTIL` repeats a get until the response has a code and a text, to wait for controllers;
//! `WATCH` reads events up to one of the named object. A line that starts with `@` and an identity is sent by it, see
//! [`Identity`]. A line that starts with `!` and a reason compares code and reason only. Values of each server are
//! written as `$…(…)`, see [`crate::requests::side::Memory`].

/// The content type of bodies in protobuf.
pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// One request.
pub(crate) struct Step {
    pub(crate) line: usize,
    pub(crate) method: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) path: String,
    pub(crate) body: String,
    /// What ends it.
    pub(crate) end: End,
    /// Whether only code and reason are compared.
    pub(crate) code_only: bool,
    /// Who sends it; `None` for the administrator.
    pub(crate) identity: Option<Identity>,
}

/// Who sends a request: `@[=TOKEN>]USER[+GROUP]…[;KEY=VALUE]…` impersonates a user with groups and extra fields; the
/// key `uid` is the UID. `TOKEN` is that of the administrator unless it names a service account for which the script
/// has requested one, or `none` or `bad`. Without a user, nobody is impersonated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) token: Option<String>,
    pub(crate) user: String,
    pub(crate) groups: Vec<String>,
    pub(crate) extra: Vec<(String, String)>,
}

impl Identity {
    pub(crate) fn read(text: &str) -> Self {
        let (token, rest) = match text.strip_prefix('=') {
            Some(rest) => {
                let (token, rest) = rest.split_once('>').unwrap_or((rest, ""));
                (Some(token.to_owned()), rest)
            }
            None => (None, text),
        };
        let mut parts = rest.split(';');
        let mut names = parts.next().unwrap_or_default().split('+').map(str::to_owned);
        Self {
            token,
            user: names.next().unwrap_or_default(),
            groups: names.collect(),
            extra: parts
                .filter_map(|part| part.split_once('='))
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        }
    }
}

/// What ends a step.
pub(crate) enum End {
    Response,
    /// A code and a text in the response; the request is repeated.
    Until(u16, String),
    /// An event of the object of this name.
    Event(String),
}

/// Reads steps, one a line.
pub(crate) fn read(text: &str) -> Vec<Step> {
    text.lines()
        .enumerate()
        .map(|(line, text)| (line + 1, text.trim()))
        .filter(|(_, text)| !text.is_empty() && !text.starts_with('#'))
        .map(|(line, text)| step(line, text))
        .collect()
}

/// Reads one step.
pub(crate) fn step(line: usize, text: &str) -> Step {
    let (code_only, text) = match text.strip_prefix('!') {
        Some(rest) => (
            true,
            rest.trim_start()
                .split_once("!!")
                .map_or(rest, |(step, _why)| step),
        ),
        None => (false, text),
    };
    let (identity, text) = match text.trim().strip_prefix('@') {
        Some(rest) => {
            let (identity, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            (Some(Identity::read(identity)), rest)
        }
        None => (None, text),
    };
    let mut parts = text.trim().splitn(3, ' ');
    let word = parts.next().unwrap();
    let path = parts.next().unwrap_or_else(|| panic!("line {line}: no path"));
    let rest = parts.next().unwrap_or_default().trim().to_owned();
    let (method, content_type) = match word {
        "GET" | "UNTIL" | "WATCH" => ("GET", ""),
        "HEAD" => ("HEAD", ""),
        "OPTIONS" => ("OPTIONS", ""),
        "DELETE-PROTOBUF" => ("DELETE", PROTOBUF),
        "POST-PROTOBUF" => ("POST", PROTOBUF),
        "PUT-PROTOBUF" => ("PUT", PROTOBUF),
        "DELETE" => ("DELETE", "application/json"),
        "DELETE-TEXT" => ("DELETE", "text/plain"),
        "DELETE-YAML" => ("DELETE", "application/yaml"),
        "POST" => ("POST", "application/json"),
        "PUT" => ("PUT", "application/json"),
        "APPLY" => ("PATCH", "application/apply-patch+yaml"),
        "PATCH-MERGE" => ("PATCH", "application/merge-patch+json"),
        "PATCH-JSON" => ("PATCH", "application/json-patch+json"),
        "PATCH-STRATEGIC" => ("PATCH", "application/strategic-merge-patch+json"),
        other => panic!("line {line}: what is {other}?"),
    };
    let (end, body) = match word {
        "UNTIL" => {
            let (code, text) = rest.split_once(' ').unwrap_or((&rest, ""));
            let code = code.parse().expect("a code");
            (End::Until(code, text.trim().to_owned()), String::new())
        }
        "WATCH" => (End::Event(rest), String::new()),
        _ => (End::Response, rest),
    };
    Step {
        line,
        method,
        content_type,
        path: path.to_owned(),
        body,
        end,
        code_only,
        identity,
    }
}
