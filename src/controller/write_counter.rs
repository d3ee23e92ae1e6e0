//! Counts the writes to members in the management cluster, and notices when the count was set back (ADR 40).
//!
//! One increment serves all attempts that wait for a number. The process counts in a timeline of its own, which begins
//! with its first write. While a finding holds the installation, no number is given, so nothing is written.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use starling_core::ids::InstallationId;
use starling_core::restore::{KnownWrites, RestoreFinding, Timeline, WriteNumber};
use starling_member::{NumberError, WriteNumbers};
use starling_net::clock::Clock;
use tokio::sync::{Notify, oneshot, watch};

use super::hub::{Hub, HubError, InstallationRecord, installation_key};
use crate::controller::object_key::ObjectKey;
use crate::controller::suspicions::Suspicions;
use crate::controller::waits;

/// Number of times that a write is repeated after another process wrote in between.
const TRIES: usize = 8;
/// The message of an attempt that lost its permit.
const SUSPECTED: &str =
    "the management cluster has older objects than before, so the attempt began with others than it has";

/// The counter of the writes of this installation.
pub struct WriteCounter {
    hub: Hub,
    clock: Clock,
    installation: InstallationId,
    state: Mutex<State>,
    /// The attempts that wait for a number.
    waiting: Mutex<Vec<oneshot::Sender<Result<WriteNumber, Refusal>>>>,
    has_waiting: Notify,
    /// The finding that holds the installation.
    held: watch::Sender<Option<Arc<RestoreFinding>>>,
    /// One read at a time, so that many attempts with unknown numbers cause one.
    reading: tokio::sync::Mutex<()>,
    suspicions: Arc<Suspicions>,
}

#[derive(Debug, Default)]
struct State {
    /// Everything that this process has seen to be stored.
    known: KnownWrites,
    /// The timeline of this process; `None` before its first write.
    timeline: Option<Timeline>,
    /// The stored record, as last read or written; `None` if that is uncertain.
    record: Option<InstallationRecord>,
    /// Whether the finding is stored.
    is_stored: bool,
}

/// Why there is no number. Shared by all attempts that waited for it.
#[derive(Clone, Debug)]
enum Refusal {
    Held(Arc<RestoreFinding>),
    Hub(Arc<HubError>),
}

impl From<HubError> for Refusal {
    fn from(error: HubError) -> Self {
        Self::Hub(Arc::new(error))
    }
}

impl From<Refusal> for NumberError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Held(finding) => Self::SetBack(finding.to_string()),
            Refusal::Hub(error) => Self::Hub(error.into()),
        }
    }
}

impl fmt::Debug for WriteCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteCounter").finish_non_exhaustive()
    }
}

impl WriteCounter {
    /// Creates the counter of a management cluster.
    #[must_use]
    pub fn new(hub: Hub, clock: Clock, installation: InstallationId) -> Self {
        Self {
            hub,
            clock,
            installation,
            state: Mutex::default(),
            waiting: Mutex::default(),
            has_waiting: Notify::new(),
            held: watch::Sender::new(None),
            reading: tokio::sync::Mutex::default(),
            suspicions: Arc::default(),
        }
    }

    /// Reads the finding of an earlier process.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn load(&self) -> Result<(), HubError> {
        let record = self.stored().await?;
        if let Some(finding) = record.finding()? {
            tracing::warn!(%finding, "the installation is held");
            self.hold(finding, true);
        }
        lock(&self.state).known = record.known()?;
        Ok(())
    }

    /// Returns the finding that holds the installation; `None` if nothing does.
    #[must_use]
    pub fn held(&self) -> Option<Arc<RestoreFinding>> {
        self.held.borrow().clone()
    }

    /// Returns a receiver of the changes of [`Self::held`].
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<RestoreFinding>>> {
        self.held.subscribe()
    }

    /// Returns the counter for the writes to one member that no object of the management cluster decides.
    #[must_use]
    pub fn of_cluster(self: &Arc<Self>, cluster: &ObjectKey) -> Arc<dyn WriteNumbers> {
        Arc::new(ClusterWrites {
            counter: self.clone(),
            cluster: cluster.clone(),
            suspicions: None,
        })
    }

    /// Returns the counter for the writes of one pass to one member. Once the pass lost its permit, nothing is written:
    /// what it read may be of a past that is lost.
    #[must_use]
    pub fn of_pass(self: &Arc<Self>, permit: PassPermit<'_>, cluster: &ObjectKey) -> Arc<dyn WriteNumbers> {
        Arc::new(ClusterWrites {
            counter: self.clone(),
            cluster: cluster.clone(),
            suspicions: Some(permit.suspicions),
        })
    }

    /// Gives numbers to all that wait, until it is dropped.
    pub async fn serve(self: Arc<Self>) {
        loop {
            self.has_waiting.notified().await;
            let waiting = std::mem::take(&mut *lock(&self.waiting));
            let count = u64::try_from(waiting.len()).unwrap_or(u64::MAX);
            let mut taken = self.increment(count).await;
            for waiting in waiting {
                let number = match &mut taken {
                    Ok(last) => {
                        *last = last.next();
                        Ok(last.clone())
                    }
                    Err(refusal) => Err(refusal.clone()),
                };
                // An attempt that was aborted leaves a number that nothing has.
                drop(waiting.send(number));
            }
            tokio::time::sleep(waits::WRITE_NUMBERS).await;
        }
    }

    /// Reads what is stored while the installation is held: a person may have released it. Stores a finding that could
    /// not be stored before.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn recheck(&self) -> Result<(), HubError> {
        let Some(finding) = self.held() else {
            return Ok(());
        };
        if !lock(&self.state).is_stored {
            return self.store(&finding).await;
        }
        let record = self.stored().await?;
        if record.finding()?.is_some() {
            return Ok(());
        }
        let known = record.known()?;
        if !known.knows(&finding.number) {
            // The management cluster was set back once more, to a time without the finding: nobody has released it.
            return self.store(&finding).await;
        }
        tracing::info!(number = %finding.number, "the restore was released");
        let mut state = lock(&self.state);
        // The memory of this process about the lost past does not count any more, and neither does its timeline.
        *state = State {
            known,
            record: Some(record),
            ..State::default()
        };
        drop(state);
        self.held.send_replace(None);
        Ok(())
    }

    /// Returns the suspicions that the management cluster was set back.
    #[must_use]
    pub fn suspicions(&self) -> &Arc<Suspicions> {
        &self.suspicions
    }

    /// Returns what a pass has to keep to, which begins now and reads the caches after this. It is never valid if
    /// nothing may be decided now.
    #[must_use]
    pub fn permit(&self) -> PassPermit<'_> {
        let permit = PassPermit {
            counter: self,
            suspicions: Some(self.suspicions.count()),
        };
        let suspicions = permit.suspicions.filter(|_| permit.is_valid());
        PassPermit { suspicions, ..permit }
    }

    /// Compares what is stored with what is known for each suspicion, and not only with the next write, until it is
    /// dropped.
    pub async fn check_suspicions(self: Arc<Self>) {
        let mut raised = self.suspicions.subscribe();
        loop {
            let count = *raised.borrow_and_update();
            let mut backoff = waits::NUMBER_CHECK;
            // What holds the installation says that it was set back. A release has to be read first: it ends what this
            // process remembers of the lost past.
            while count > 0 && self.held().is_none() {
                match self.compare().await {
                    Ok(_) | Err(Refusal::Held(_)) => break,
                    Err(Refusal::Hub(error)) => {
                        tracing::warn!(error = %crate::chain(&error), "cannot check whether the management cluster was set back");
                    }
                }
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(waits::NUMBER_CHECK_MAX);
            }
            self.suspicions.compared(count);
            if raised.changed().await.is_err() {
                return;
            }
        }
    }

    /// Reads the record. A management cluster that was set back to a time before the first start gets it again, with
    /// the ID of this process: all members know it.
    async fn stored(&self) -> Result<InstallationRecord, HubError> {
        if let Some(record) = self.hub.installation_record().await? {
            return Ok(record);
        }
        self.hub.create_installation(&self.installation).await?;
        let record = self.hub.installation_record().await?;
        record.ok_or_else(|| HubError::contended("create", &installation_key()))
    }

    /// Takes `count` numbers of the timeline of this process. Returns the number before the first of them.
    async fn increment(&self, count: u64) -> Result<WriteNumber, Refusal> {
        for _ in 0..TRIES {
            if let Some(finding) = self.held() {
                return Err(Refusal::Held(finding));
            }
            // Whatever becomes of the write, what is stored is uncertain until its response.
            let record = lock(&self.state).record.take();
            let record = match record {
                Some(record) => record,
                None => self.read().await?,
            };
            let timeline = self.timeline().await?;
            let mut known = record.known()?;
            let before = known.take(&timeline, count);
            if let Some(written) = self.hub.write_installation(&record, &known, None).await? {
                let mut state = lock(&self.state);
                state.known = known;
                state.record = Some(written);
                return Ok(before);
            }
        }
        Err(HubError::contended("write", &installation_key()).into())
    }

    async fn timeline(&self) -> Result<Timeline, HubError> {
        if let Some(timeline) = &lock(&self.state).timeline {
            return Ok(timeline.clone());
        }
        // A management cluster that draws its UIDs from a stored position, as the embedded one does, gives the same UID
        // to two processes that start from copies of one backup. They do not start at the same time.
        let random = self.hub.random_uid().await?;
        let timeline = Timeline::new(&format!("{random} {}", self.clock.now()));
        lock(&self.state).timeline = Some(timeline.clone());
        Ok(timeline)
    }

    /// Reads what is stored, and compares it with what this process has seen to be stored.
    async fn read(&self) -> Result<InstallationRecord, Refusal> {
        let record = self.compare().await?;
        lock(&self.state).known = record.known()?;
        Ok(record)
    }

    /// The same, without a change of what this process knows.
    async fn compare(&self) -> Result<InstallationRecord, Refusal> {
        // A number that this process gives in the meantime may not be in the response.
        let seen = lock(&self.state).known.clone();
        let record = self.stored().await?;
        if let Some(finding) = record.finding()? {
            return Err(Refusal::Held(self.hold(finding, true)));
        }
        match record.known()?.lacks(&seen) {
            Some(number) => Err(self.set_back(number, "the controller".to_owned()).await),
            None => Ok(record),
        }
    }

    /// Checks a number that a member has.
    async fn check(&self, found: &WriteNumber, cluster: &ObjectKey) -> Result<(), Refusal> {
        let is_known = || lock(&self.state).known.knows(found);
        let check = || match self.held() {
            Some(finding) => Some(Err(Refusal::Held(finding))),
            None => is_known().then_some(Ok(())),
        };
        if let Some(checked) = check() {
            return checked;
        }
        // Another process may have counted since.
        let _one = self.reading.lock().await;
        if let Some(checked) = check() {
            return checked;
        }
        self.read().await?;
        if is_known() {
            return Ok(());
        }
        let witness = format!("Cluster {cluster}");
        Err(self.set_back(found.clone(), witness).await)
    }

    /// Holds the installation, and stores why.
    async fn set_back(&self, number: WriteNumber, witness: String) -> Refusal {
        let finding = RestoreFinding {
            number,
            witness,
            time: self.clock.now(),
        };
        tracing::error!(%finding, "restore detected");
        let held = self.hold(finding, false);
        if let Err(error) = self.store(&held).await {
            tracing::error!(error = %crate::chain(&error), "the finding was not stored; trying again");
        }
        Refusal::Held(held)
    }

    pub(in crate::controller) fn hold(
        &self,
        finding: RestoreFinding,
        is_stored: bool,
    ) -> Arc<RestoreFinding> {
        let mut state = lock(&self.state);
        state.is_stored = is_stored;
        // A later write of this process must not reuse numbers of the lost past.
        state.timeline = None;
        state.record = None;
        drop(state);
        let finding = Arc::new(finding);
        self.held.send_if_modified(|held| {
            let is_new = held.as_ref() != Some(&finding);
            *held = Some(finding.clone());
            is_new
        });
        finding
    }

    /// Stores a finding, unless one is stored.
    async fn store(&self, finding: &RestoreFinding) -> Result<(), HubError> {
        for _ in 0..TRIES {
            let record = self.stored().await?;
            let known = record.known()?;
            if record.finding()?.is_some()
                || self
                    .hub
                    .write_installation(&record, &known, Some(finding))
                    .await?
                    .is_some()
            {
                lock(&self.state).is_stored = true;
                return Ok(());
            }
        }
        Err(HubError::contended("write", &installation_key()))
    }
}

/// What a pass decides holds as long as no restore is found or suspected.
#[derive(Clone, Copy, Debug)]
pub struct PassPermit<'a> {
    counter: &'a WriteCounter,
    /// The suspicions when the pass began; `None`: one was pending, or a restore held the installation.
    suspicions: Option<u64>,
}

impl PassPermit<'_> {
    /// Returns whether what the pass has read may still be carried out.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let suspicions = &self.counter.suspicions;
        // In this order: a comparison first holds the installation, and then ends the suspicion.
        Some(suspicions.count()) == self.suspicions
            && !suspicions.is_pending()
            && self.counter.held().is_none()
    }
}

/// The writes to one member.
#[derive(Debug)]
struct ClusterWrites {
    counter: Arc<WriteCounter>,
    cluster: ObjectKey,
    /// The permit of the pass that writes; `None`: it needs none.
    suspicions: Option<Option<u64>>,
}

impl WriteNumbers for ClusterWrites {
    fn installation(&self) -> &InstallationId {
        &self.counter.installation
    }

    fn take(&self) -> BoxFuture<'_, Result<WriteNumber, NumberError>> {
        async {
            let (sender, receiver) = oneshot::channel();
            lock(&self.counter.waiting).push(sender);
            self.counter.has_waiting.notify_one();
            let number = match receiver.await {
                Ok(number) => number?,
                Err(stopped) => return Err(NumberError::Hub(stopped.into())),
            };
            self.refusal().map_or(Ok(number), Err)
        }
        .boxed()
    }

    fn refusal(&self) -> Option<NumberError> {
        if let Some(finding) = self.counter.held() {
            return Some(Refusal::Held(finding).into());
        }
        let permit = PassPermit {
            counter: &self.counter,
            suspicions: self.suspicions?,
        };
        (!permit.is_valid()).then(|| NumberError::SetBack(SUSPECTED.to_owned()))
    }

    fn check<'a>(&'a self, found: &'a WriteNumber) -> BoxFuture<'a, Result<(), NumberError>> {
        async { Ok(self.counter.check(found, &self.cluster).await?) }.boxed()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
