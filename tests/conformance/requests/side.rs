//! One of the two servers: sends steps to it and remembers what it has made.

use std::collections::HashMap;
use std::time::Duration;

use http::Request;
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;
use tokio::time::Instant;

use crate::requests::script::{End, Step};

/// How long controllers and watches may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// What garbage collection takes away again.
const COLLECTED: [&str; 2] = ["foregroundDeletion", "orphan"];

pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: Value,
    pub(crate) warnings: Vec<String>,
}

/// A server as one script meets it.
pub(crate) struct Side {
    client: Client,
    memory: Memory,
}

/// Values that a server has made. A step names them: `$rv(configmaps/a)`, the newest revision met of an object;
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
                ["$rv(", "$old(", "$uid(", "$start(", "$continue("]
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

    /// A value; of an object that was never met, the revision of the first list, or else one that cannot be right.
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

    fn learn(&mut self, step: &Step, answer: &Answer) {
        if answer.code >= 300 || step.path.contains("dryRun") {
            return;
        }
        let (path, query) = step.path.split_once('?').unwrap_or((&step.path, ""));
        let mut segments = path
            .split('/')
            .skip_while(|segment| *segment != "namespaces")
            .skip(2);
        let Some(plural) = segments.next() else { return };
        let meta = &answer.body["metadata"];
        if let Some(items) = answer.body["items"].as_array() {
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
    pub(crate) fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            memory: Memory::default(),
        }
    }

    /// Does a step: sends it, and waits for what it waits for.
    pub(crate) async fn answer(&mut self, step: &Step) -> Answer {
        let deadline = Instant::now() + PATIENCE;
        let answer = match &step.end {
            End::Answer => self.send(step).await,
            End::Event(name) => self.watch(step, name, deadline).await,
            End::Until(code, text) => loop {
                let answer = self.send(step).await;
                let there = answer.code == *code && answer.body.to_string().contains(text.as_str());
                if there || Instant::now() > deadline {
                    break answer;
                }
                tokio::time::sleep(Duration::from_millis(25)).await;
            },
        };
        self.memory.learn(step, &answer);
        if step.method == "DELETE" && !step.path.contains("dryRun") {
            self.settle(step, &answer, deadline).await;
        }
        answer
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
        let body = self.memory.fill(&step.body).into_bytes();
        self.client
            .send(request.body(Body::from(body)).unwrap())
            .await
            .unwrap()
    }

    async fn send(&self, step: &Step) -> Answer {
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
        Answer { code, body, warnings }
    }

    /// Reads events up to one of an object.
    async fn watch(&self, step: &Step, name: &str, deadline: Instant) -> Answer {
        let response = self.request(step).await;
        let code = response.status().as_u16();
        let mut body = response.into_body();
        let (mut bytes, mut seen) = (Vec::new(), Vec::new());
        while let Ok(Some(frame)) = tokio::time::timeout_at(deadline, body.frame()).await {
            bytes.extend_from_slice(frame.unwrap().data_ref().map_or(&[][..], |data| data));
            while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = bytes.drain(..=end).collect();
                seen.push(serde_json::from_slice::<Value>(&line).unwrap());
            }
            if seen
                .last()
                .is_some_and(|event| event["object"]["metadata"]["name"] == name)
            {
                break;
            }
        }
        Answer {
            code,
            body: Value::Array(seen),
            warnings: Vec::new(),
        }
    }

    /// Waits until garbage collection is done with what was deleted, so that the next step meets the same on both sides.
    async fn settle(&self, step: &Step, answer: &Answer, deadline: Instant) {
        let collected = |object: &Value| {
            object["metadata"]["finalizers"]
                .as_array()
                .is_some_and(|all| all.iter().any(|one| COLLECTED.iter().any(|name| one == name)))
        };
        let under_way = |body: &Value| {
            collected(body)
                || body["items"]
                    .as_array()
                    .is_some_and(|items| items.iter().any(collected))
        };
        if !under_way(&answer.body) {
            return;
        }
        let get = Step {
            line: step.line,
            method: "GET",
            content_type: "",
            path: step.path.split('?').next().unwrap_or_default().to_owned(),
            body: String::new(),
            end: End::Answer,
            loose: false,
        };
        while Instant::now() < deadline && under_way(&self.send(&get).await.body) {
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
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    config.read_timeout = Some(Duration::from_secs(70));
    Client::try_from(config).unwrap()
}
