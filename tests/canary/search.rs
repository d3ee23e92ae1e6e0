//! Searches all places to which a secret could leak.

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
use starling_testkit::canary::{Canary, CanaryMatch, canary_matches, canary_matches_in_directory};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Watches temporary files; everything else is searched at the end.
pub(crate) struct Search {
    found: Arc<Mutex<Vec<CanaryMatch>>>,
    rounds: Arc<std::sync::atomic::AtomicUsize>,
    stop: Arc<AtomicBool>,
    watcher: Option<std::thread::JoinHandle<()>>,
}

impl Search {
    /// Continuously searches the folders of temporary files and of data for values that must never be on disk.
    pub(crate) fn watch(fleet: &Fleet, temp: &Path, credentials: Vec<&Canary>) -> Self {
        let (found, stop): (Arc<Mutex<Vec<CanaryMatch>>>, Arc<AtomicBool>) = Default::default();
        let rounds = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let folders: Vec<PathBuf> = vec![temp.to_owned(), fleet.data_dir()];
        let credentials: Vec<Canary> = credentials.into_iter().cloned().collect();
        let watcher = {
            let (found, stop, rounds) = (found.clone(), stop.clone(), rounds.clone());
            std::thread::spawn(move || {
                let credentials: Vec<&Canary> = credentials.iter().collect();
                while !stop.load(Ordering::SeqCst) {
                    let matches = folders
                        .iter()
                        .flat_map(|folder| canary_matches_in_directory(&credentials, folder));
                    found.lock().unwrap().extend(matches);
                    rounds.fetch_add(1, Ordering::SeqCst);
                    // The files of a render exist for tens of milliseconds.
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            })
        };
        Self {
            found,
            rounds,
            stop,
            watcher: Some(watcher),
        }
    }

    /// Returns everything that was found: by the watcher, and now in all output of the program.
    pub(crate) async fn search(
        mut self,
        fleet: &Fleet,
        listen: &str,
        children: &Path,
        canaries: &[&Canary],
    ) -> Result<Vec<CanaryMatch>> {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(watcher) = self.watcher.take() {
            watcher
                .join()
                .map_err(|_| anyhow::anyhow!("the watcher of temporary files failed"))?;
        }
        assert!(
            self.rounds.load(Ordering::SeqCst) > 10,
            "temporary files were searched"
        );
        let mut found = std::mem::take(&mut *self.found.lock().unwrap());

        let log = std::fs::read(fleet.log())?;
        assert!(
            log.windows(5).any(|window| window == b"TRACE"),
            "the log is complete"
        );
        found.extend(canary_matches(canaries, "log", &log));
        let children_log = std::fs::read(children)?;
        assert!(
            children_log.windows(5).any(|window| window == b"build"),
            "kustomize was called"
        );
        assert!(
            children_log.windows(9).any(|window| window == b"/dev/stdi")
                && children_log
                    .windows(16)
                    .any(|window| window == b"ENC[AES256_GCM,d"),
            "sops was called, and its folder was searched"
        );
        found.extend(canary_matches(
            canaries,
            "arguments and environment of kustomize and sops, and the files of sops",
            &children_log,
        ));

        for entry in std::fs::read_dir(fleet.data_dir())? {
            let path = entry?.path();
            // Mirrors contain the same files as the repository.
            if path.file_name().is_some_and(|name| name != "git") {
                found.extend(canary_matches_in_directory(canaries, &path));
                found.extend(if path.is_file() {
                    canary_matches(canaries, &path.display().to_string(), &std::fs::read(&path)?)
                } else {
                    Vec::new()
                });
            }
        }
        for path in ["/metrics", "/healthz", "/readyz?verbose"] {
            found.extend(canary_matches(canaries, path, &fetch(listen, path).await?));
        }
        for (place, text) in objects(fleet).await? {
            found.extend(canary_matches(canaries, &place, text.as_bytes()));
        }
        Ok(found)
    }
}

/// Returns the objects of the management cluster and of Starling's namespace of the member.
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
