//! Where a secret could have gone, and the search.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::Result;
use k8s_openapi::api::core::v1::{ConfigMap, Event as CoreEvent};
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;
use starling_api::{Cluster, Source, SyncGroup, SyncResource};
use starling_testkit::Fleet;
use starling_testkit::canary::{Canary, Sighting, sightings, sightings_below};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Watches what is there for a moment only; the rest is searched at the end.
pub(crate) struct Places {
    seen: Arc<Mutex<Vec<Sighting>>>,
    rounds: Arc<std::sync::atomic::AtomicUsize>,
    stop: Arc<AtomicBool>,
    watcher: Option<std::thread::JoinHandle<()>>,
}

impl Places {
    /// Searches the folder of temporary files for credentials, over and over.
    pub(crate) fn watch(fleet: &Fleet, temp: &Path, credentials: Vec<&Canary>) -> Self {
        let (seen, stop): (Arc<Mutex<Vec<Sighting>>>, Arc<AtomicBool>) = Default::default();
        let rounds = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let folders: Vec<PathBuf> = vec![temp.to_owned(), fleet.data_dir()];
        let credentials: Vec<Canary> = credentials.into_iter().cloned().collect();
        let watcher = {
            let (seen, stop, rounds) = (seen.clone(), stop.clone(), rounds.clone());
            std::thread::spawn(move || {
                let credentials: Vec<&Canary> = credentials.iter().collect();
                while !stop.load(Ordering::SeqCst) {
                    let found = folders
                        .iter()
                        .flat_map(|folder| sightings_below(&credentials, folder));
                    seen.lock().unwrap().extend(found);
                    rounds.fetch_add(1, Ordering::SeqCst);
                    // The files of a render live for tens of milliseconds.
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            })
        };
        Self {
            seen,
            rounds,
            stop,
            watcher: Some(watcher),
        }
    }

    /// Everything that was seen: by the watcher, and now in what the program wrote.
    pub(crate) async fn search(
        mut self,
        fleet: &Fleet,
        listen: &str,
        children: &Path,
        canaries: &[&Canary],
    ) -> Result<Vec<Sighting>> {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(watcher) = self.watcher.take() {
            watcher
                .join()
                .map_err(|_| anyhow::anyhow!("the watcher of temporary files failed"))?;
        }
        assert!(
            self.rounds.load(Ordering::SeqCst) > 10,
            "temporary files were looked at"
        );
        let mut seen = std::mem::take(&mut *self.seen.lock().unwrap());

        let log = std::fs::read(fleet.log())?;
        assert!(
            log.windows(5).any(|window| window == b"TRACE"),
            "the log is complete"
        );
        seen.extend(sightings(canaries, "log", &log));
        let told = std::fs::read(children)?;
        assert!(
            told.windows(5).any(|window| window == b"build"),
            "kustomize was called"
        );
        seen.extend(sightings(
            canaries,
            "arguments and environment of kustomize",
            &told,
        ));

        for entry in std::fs::read_dir(fleet.data_dir())? {
            let path = entry?.path();
            // Mirrors hold what the repository holds.
            if path.file_name().is_some_and(|name| name != "git") {
                seen.extend(sightings_below(canaries, &path));
                seen.extend(if path.is_file() {
                    sightings(canaries, &path.display().to_string(), &std::fs::read(&path)?)
                } else {
                    Vec::new()
                });
            }
        }
        for path in ["/metrics", "/healthz", "/readyz?verbose"] {
            seen.extend(sightings(canaries, path, &fetch(listen, path).await?));
        }
        for (place, text) in objects(fleet).await? {
            seen.extend(sightings(canaries, &place, text.as_bytes()));
        }
        Ok(seen)
    }
}

/// What stands in the management cluster and in Starling's own namespace of the member.
async fn objects(fleet: &Fleet) -> Result<Vec<(String, String)>> {
    let hub = fleet.hub().clone();
    let member = fleet.member("m1").await?;
    let mut texts = vec![
        text::<Source>("Sources", &hub).await?,
        text::<Cluster>("Clusters", &hub).await?,
        text::<SyncResource>("Syncs", &hub).await?,
        text::<SyncGroup>("SyncGroups", &hub).await?,
        text::<Event>("events of the management cluster", &hub).await?,
        text::<CoreEvent>("core events of the management cluster", &hub).await?,
        text::<ConfigMap>("ConfigMaps of the management cluster", &hub).await?,
        text::<ConfigMap>("ConfigMaps of the member", &member).await?,
        text::<CoreEvent>("events of the member", &member).await?,
    ];
    texts.retain(|(_, text)| !text.is_empty());
    Ok(texts)
}

async fn text<K>(place: &str, client: &Client) -> Result<(String, String)>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let list = Api::<K>::all(client.clone()).list(&ListParams::default()).await?;
    Ok((place.to_owned(), serde_json::to_string(&list.items)?))
}

async fn fetch(address: &str, path: &str) -> Result<Vec<u8>> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}
