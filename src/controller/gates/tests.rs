use std::sync::Mutex;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use starling_core::gate::Effect;
use starling_net::web::{Post, Reply, WebError};
use tokio::sync::Notify;

use super::super::hub::testing;
use super::*;

/// Servers that never answer.
#[derive(Default)]
struct Silent {
    requests: Mutex<Vec<String>>,
    changed: Notify,
}

impl Silent {
    fn requests_of(&self, namespace: &str) -> usize {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|url| url.contains(namespace)).count()
    }

    async fn until(&self, namespace: &str, count: usize) {
        while self.requests_of(namespace) < count {
            self.changed.notified().await;
        }
    }
}

impl Web for Silent {
    fn post<'a>(&'a self, post: &'a Post) -> BoxFuture<'a, Result<Reply, WebError>> {
        self.requests.lock().unwrap().push(post.url.clone());
        self.changed.notify_one();
        std::future::pending().boxed()
    }
}

fn metric(namespace: &str) -> Effect {
    Effect::Metric {
        url: format!("http://{namespace}.example.com"),
        query: "up".to_owned(),
        test: "true".to_owned(),
        secret: None,
    }
}

#[tokio::test]
async fn tenant_gates_of_one_namespace_leave_requests_to_others() {
    let web = Arc::new(Silent::default());
    let tools = GateTools {
        hub: testing::empty(),
        web: web.clone(),
        clock: Clock::system(),
        gates: Arc::default(),
        groups: Arc::default(),
    };
    let run = |namespace: &str, count: usize| {
        let group = ObjectKey::new(namespace, "web");
        let begun_at = jiff::Timestamp::UNIX_EPOCH;
        let open = |index| super::testing::open(&group, index, metric(namespace), begun_at);
        let open = (0..count).map(open).collect();
        tools.gates.run(&tools, &group, &OwnerReference::default(), open);
    };
    run("many", 2 * MAX_CONCURRENT_REQUESTS);
    web.until("many", MAX_CONCURRENT_REQUESTS / 2).await;
    run("few", 1);
    web.until("few", 1).await;
    assert_eq!(web.requests_of("many"), MAX_CONCURRENT_REQUESTS / 2);
    tools.gates.stop();
}
