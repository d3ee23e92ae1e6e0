//! One of the two servers: sends steps to it and remembers generated values.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;
use tokio::time::Instant;

use crate::requests::script::{End, Identity, PROTOBUF, Step};

/// How long controllers and watches may take.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The finalizers that garbage collection removes.
const COLLECTED: [&str; 2] = ["foregroundDeletion", "orphan"];

pub(crate) struct Response {
    pub(crate) code: u16,
    pub(crate) body: Value,
    pub(crate) warnings: Vec<String>,
}

/// The state of one script on a server.
pub(crate) struct Side {
    client: Client,
    /// A client without credentials, for steps with a token of their own.
    bare: Option<Client>,
    memory: Memory,
    /// Whether a controller manager collects garbage.
    collects: bool,
}

/// Values that a server has generated, for use in steps: `$rv(configmaps/a)`, the newest known revision of an object;
/// `$old(configmaps/a)`, the one before; `$uid(configmaps/a)`; `$start(configmaps)`, the revision of the first list
/// without parameters; `$continue()`, the token of the last list that had one.
#[derive(Default)]
pub(crate) struct Memory {
    values: HashMap<String, String>,
}

impl Memory {
    fn fill(&self, text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            let (before, from) = rest.split_at(at);
            out.push_str(before);
            let name = from.find(')').map(|to| &from[..=to]);
            match name.filter(|name| {
                ["$rv(", "$old(", "$uid(", "$start(", "$continue(", "$token("]
                    .iter()
                    .any(|word| name.starts_with(word))
            }) {
                Some(name) => {
                    out.push_str(self.value(name));
                    rest = &from[name.len()..];
                }
                None => {
                    out.push('$');
                    rest = &from[1..];
                }
            }
        }
        out + rest
    }

    /// Returns a value; for an unknown object, the revision of the first list, or an invalid one.
    fn value(&self, name: &str) -> &str {
        let (_, object) = name.split_once('(').unwrap_or_default();
        let (plural, _) = object.split_once('/').unwrap_or_default();
        let start = format!("$start({plural})");
        let start = (!name.starts_with("$uid")).then_some(start);
        self.values
            .get(name)
            .or_else(|| self.values.get(&start?))
            .map_or("1", String::as_str)
    }

    fn remember(&mut self, step: &Step, response: &Response) {
        if response.code >= 300 || step.path.contains("dryRun") {
            return;
        }
        let (path, query) = step.path.split_once('?').unwrap_or((&step.path, ""));
        let mut segments = path
            .split('/')
            .skip_while(|segment| *segment != "namespaces")
            .skip(2);
        let Some(plural) = segments.next() else { return };
        let meta = &response.body["metadata"];
        if let (Some(token), Some(name)) =
            (response.body["status"]["token"].as_str(), segments.clone().next())
        {
            self.values.insert(format!("$token({name})"), token.to_owned());
            return;
        }
        if let Some(items) = response.body["items"].as_array() {
            if query.is_empty()
                && let Some(revision) = meta["resourceVersion"].as_str()
            {
                self.values
                    .entry(format!("$start({plural})"))
                    .or_insert_with(|| revision.to_owned());
            }
            if let Some(token) = meta["continue"].as_str() {
                self.values.insert("$continue()".to_owned(), token.to_owned());
            }
            for item in items {
                self.object(plural, &item["metadata"]);
            }
            return;
        }
        self.object(plural, meta);
    }

    fn object(&mut self, plural: &str, meta: &Value) {
        let Some(name) = meta["name"].as_str() else { return };
        if let Some(uid) = meta["uid"].as_str() {
            self.values
                .insert(format!("$uid({plural}/{name})"), uid.to_owned());
        }
        if let Some(revision) = meta["resourceVersion"].as_str() {
            let before = self
                .values
                .insert(format!("$rv({plural}/{name})"), revision.to_owned());
            if let Some(before) = before.filter(|before| before != revision) {
                self.values.insert(format!("$old({plural}/{name})"), before);
            }
        }
    }
}

impl Side {
    pub(crate) fn new(client: &Client, collects: bool) -> Self {
        Self {
            client: client.clone(),
            bare: None,
            memory: Memory::default(),
            collects,
        }
    }

    /// Adds a client without credentials.
    pub(crate) fn with_bare(mut self, bare: Client) -> Self {
        self.bare = Some(bare);
        self
    }

    /// Runs a step: sends it, and waits for its condition.
    pub(crate) async fn response(&mut self, step: &Step) -> Response {
        let deadline = Instant::now() + TIMEOUT;
        let response = match &step.end {
            End::Response => self.send(step).await,
            End::Event(name) => self.watch(step, name, deadline).await,
            End::Until(code, text) => loop {
                let response = self.send(step).await;
                let there = response.code == *code && response.body.to_string().contains(text.as_str());
                if there || Instant::now() > deadline {
                    break response;
                }
                tokio::time::sleep(Duration::from_millis(25)).await;
            },
        };
        self.memory.remember(step, &response);
        if self.collects && step.method == "DELETE" && !step.path.contains("dryRun") {
            self.wait_for_garbage_collection(step, &response, deadline).await;
        }
        response
    }

    async fn request(&self, step: &Step) -> http::Response<Body> {
        let mut request = Request::builder()
            .method(step.method)
            .uri(self.memory.fill(&step.path))
            .header("user-agent", "compare/1.0")
            .header("accept", "application/json");
        if !step.body.is_empty() {
            request = request.header("content-type", step.content_type);
        }
        let mut client = &self.client;
        if let Some(identity) = &step.identity {
            request = self.identify(request, identity);
            if identity.token.is_some() {
                client = self.bare.as_ref().expect("a client without credentials");
            }
        }
        let body = match step.content_type {
            PROTOBUF => STANDARD.decode(&step.body).unwrap(),
            _ => self.memory.fill(&step.body).into_bytes(),
        };
        client
            .send(request.body(Body::from(body)).unwrap())
            .await
            .unwrap()
    }

    /// Adds the headers of an identity.
    fn identify(&self, mut request: http::request::Builder, identity: &Identity) -> http::request::Builder {
        match identity.token.as_deref() {
            None | Some("none") => {}
            Some("bad") => request = request.header("authorization", "Bearer bad"),
            Some(account) => {
                let token = self.memory.value(&format!("$token({account})"));
                request = request.header("authorization", format!("Bearer {token}"));
            }
        }
        if !identity.user.is_empty() {
            request = request.header("impersonate-user", &identity.user);
        }
        for group in &identity.groups {
            request = request.header("impersonate-group", group);
        }
        for (key, value) in &identity.extra {
            request = match &**key {
                "uid" => request.header("impersonate-uid", value),
                key => request.header(format!("impersonate-extra-{key}"), value),
            };
        }
        request
    }

    async fn send(&self, step: &Step) -> Response {
        let response = self.request(step).await;
        let code = response.status().as_u16();
        let warnings = response
            .headers()
            .get_all("warning")
            .iter()
            .map(|value| value.to_str().unwrap().to_owned())
            .collect();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes)
            .or_else(|_| events(&bytes))
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Response { code, body, warnings }
    }

    /// Reads events up to one of an object.
    async fn watch(&self, step: &Step, name: &str, deadline: Instant) -> Response {
        let response = self.request(step).await;
        let code = response.status().as_u16();
        let mut body = response.into_body();
        let (mut bytes, mut events_so_far) = (Vec::new(), Vec::new());
        while let Ok(Some(frame)) = tokio::time::timeout_at(deadline, body.frame()).await {
            bytes.extend_from_slice(frame.unwrap().data_ref().map_or(&[][..], |data| data));
            while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = bytes.drain(..=end).collect();
                events_so_far.push(serde_json::from_slice::<Value>(&line).unwrap());
            }
            if events_so_far
                .last()
                .is_some_and(|event| event["object"]["metadata"]["name"] == name)
            {
                break;
            }
        }
        Response {
            code,
            body: Value::Array(events_so_far),
            warnings: Vec::new(),
        }
    }

    /// Waits until garbage collection has finished, so that the next step has the same state on both sides.
    async fn wait_for_garbage_collection(&self, step: &Step, response: &Response, deadline: Instant) {
        let collected = |object: &Value| {
            object["metadata"]["finalizers"]
                .as_array()
                .is_some_and(|all| all.iter().any(|one| COLLECTED.iter().any(|name| one == name)))
        };
        let is_being_collected = |body: &Value| {
            collected(body)
                || body["items"]
                    .as_array()
                    .is_some_and(|items| items.iter().any(collected))
        };
        if !is_being_collected(&response.body) {
            return;
        }
        let get = Step {
            line: step.line,
            method: "GET",
            content_type: "",
            path: step.path.split('?').next().unwrap_or_default().to_owned(),
            body: String::new(),
            end: End::Response,
            code_only: false,
            identity: None,
        };
        while Instant::now() < deadline && is_being_collected(&self.send(&get).await.body) {
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }
}

/// The events of a watch, one on each line.
fn events(bytes: &[u8]) -> serde_json::Result<Value> {
    serde_json::Deserializer::from_slice(bytes)
        .into_iter::<Value>()
        .collect()
}

/// A client of a server.
pub(crate) async fn client(kubeconfig: &str) -> Client {
    client_of(Kubeconfig::from_yaml(kubeconfig).unwrap()).await
}

/// A client of a server without credentials.
pub(crate) async fn client_without_credentials(kubeconfig: &str) -> Client {
    let mut kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    for user in &mut kubeconfig.auth_infos {
        user.auth_info = None;
    }
    client_of(kubeconfig).await
}

async fn client_of(kubeconfig: Kubeconfig) -> Client {
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    config.read_timeout = Some(Duration::from_secs(70));
    Client::try_from(config).unwrap()
}
