//! One kube-apiserver for all tests of the program, and raw requests to it.

use std::sync::{Arc, Weak};

use http_body_util::BodyExt;
use serde_json::Value;
use starling_controlplane::{Assets, ControlPlanes, Options};
use tokio::sync::Mutex;

/// The server; the last test that uses it stops it.
static RUNNING: Mutex<Weak<ControlPlanes>> = Mutex::const_new(Weak::new());

/// A server and a client of the test.
pub(crate) struct Real {
    client: kube::Client,
    _planes: Arc<ControlPlanes>,
}

/// A response of the server.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: Value,
    /// The texts of the `Warning` headers.
    pub(crate) warnings: Vec<String>,
}

impl Real {
    pub(crate) async fn start() -> Self {
        let mut running = RUNNING.lock().await;
        let planes = match running.upgrade() {
            Some(planes) => planes,
            None => {
                let assets = Assets::find().unwrap();
                Arc::new(
                    ControlPlanes::start(&assets, &["real"], Options::default())
                        .await
                        .unwrap(),
                )
            }
        };
        *running = Arc::downgrade(&planes);
        Self {
            client: planes.get("real").unwrap().client().await.unwrap(),
            _planes: planes,
        }
    }

    /// Sends a request. The content type selects the patch type.
    pub(crate) async fn send(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Answer {
        self.request(method, path, content_type, "application/json", body)
            .await
    }

    async fn request(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        accept: &str,
        body: &Value,
    ) -> Answer {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .header("accept", accept)
            .body(kube::client::Body::from(if body.is_null() {
                Vec::new()
            } else {
                body.to_string().into_bytes()
            }))
            .unwrap();
        let response = self.client.send(request).await.unwrap();
        let code = response.status().as_u16();
        let warnings = response
            .headers()
            .get_all("warning")
            .iter()
            .map(|text| text.to_str().unwrap().to_owned())
            .collect();
        let content = response.into_body().collect().await.unwrap().to_bytes();
        Answer {
            code,
            // The response for a path that is not served is plain text.
            body: serde_json::from_slice(&content)
                .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&content).into_owned())),
            warnings,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "application/json", &Value::Null).await
    }

    /// Reads an object or a list in another form, such as a table.
    pub(crate) async fn get_as(&self, path: &str, accept: &str) -> Answer {
        self.request("GET", path, "application/json", accept, &Value::Null)
            .await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, "application/json", body).await
    }
}
