//! The numbers of writes, by which a management cluster that was set back is noticed (ADR 40).
//!
//! An attempt compares the number in the inventory before it writes anything, and takes a number of its own before its
//! first write. The inventory has this number before any object is written: whatever becomes of the attempt, the member
//! remembers it.

use std::collections::BTreeSet;

use starling_api::INVENTORY_PREFIX;
use starling_core::ids::{InstallationId, OwnerLabel};
use starling_core::inventory::Inventory;
use starling_core::inventory::format::{self, DATA_KEY, REMOVALS_KEY};
use starling_core::restore::WriteNumber;
use tokio::time::{Instant, timeout_at};

use super::attempt::Attempt;
use super::error::MemberError;
use super::numbers::WriteNumbers;
use super::stored::{Held, Stored};
use super::transport::Member;

/// How often the number of a removal is written after other removals came in between.
const REMOVAL_TRIES: usize = 8;

impl Member {
    /// Returns the number of the last write to the objects of an owner; `None` if the member has none.
    ///
    /// # Errors
    /// As [`Self::read_inventory`].
    pub async fn last_write(
        &self,
        owner: &OwnerLabel,
        deadline: Instant,
    ) -> Result<Option<WriteNumber>, MemberError> {
        Ok(self.read_stored(owner, &Attempt::until(deadline)).await?.number)
    }

    /// Returns the number of the last removal of a Sync of an installation; `None` if there was none.
    ///
    /// # Errors
    /// As [`Self::read_inventory`].
    pub async fn last_removal(
        &self,
        installation: &InstallationId,
        deadline: Instant,
    ) -> Result<Option<WriteNumber>, MemberError> {
        self.read_removal(installation, &Attempt::until(deadline)).await
    }

    /// Compares all numbers that the member has with those that the management cluster knows: those in the inventories
    /// of these owners, and that of the last removal. One request, or one for each of them if the account may not list
    /// the inventories, or if they are too large for a list.
    ///
    /// # Errors
    /// [`MemberError::SetBack`] if the management cluster does not know one of them; any other error of the requests.
    pub async fn check_numbers(
        &self,
        owners: &BTreeSet<OwnerLabel>,
        deadline: Instant,
    ) -> Result<(), MemberError> {
        let Some(numbers) = self.numbers() else {
            return Ok(());
        };
        let attempt = Attempt::until(deadline);
        let maps = match self.list_maps(&attempt).await {
            Ok(maps) => maps,
            Err(
                MemberError::Forbidden { .. } | MemberError::TooLarge { .. } | MemberError::Garbage { .. },
            ) => {
                return self.check_each(numbers, owners, &attempt).await;
            }
            Err(error) => return Err(error),
        };
        let removals = format::removals_name(numbers.installation());
        for (name, data) in maps {
            let is_ours = |owner: &str| owners.contains(&OwnerLabel::new(owner));
            let found = if name == removals {
                data.get(REMOVALS_KEY).and_then(|text| text.parse().ok())
            } else if name.strip_prefix(INVENTORY_PREFIX).is_some_and(is_ours) {
                // An inventory that cannot be read is reported by the attempts of its Sync, which write nothing.
                let text = data.get(DATA_KEY);
                text.and_then(|text| format::parse_number(text).ok().flatten())
            } else {
                None
            };
            if let Some(found) = found {
                numbers.check(&found).await?;
            }
        }
        Ok(())
    }

    async fn check_each(
        &self,
        numbers: &dyn WriteNumbers,
        owners: &BTreeSet<OwnerLabel>,
        attempt: &Attempt,
    ) -> Result<(), MemberError> {
        if let Some(found) = self.read_removal(numbers.installation(), attempt).await? {
            numbers.check(&found).await?;
        }
        for owner in owners {
            if let Some(found) = self.read_stored(owner, attempt).await?.number {
                numbers.check(&found).await?;
            }
        }
        Ok(())
    }

    /// Reads the inventory for an attempt, and keeps it in the attempt. Returns its entries.
    ///
    /// # Errors
    /// [`MemberError::SetBack`] if the management cluster does not know the number in it.
    pub(super) async fn hold_inventory(
        &self,
        owner: &OwnerLabel,
        attempt: &Attempt,
    ) -> Result<Inventory, MemberError> {
        let stored = self.read_stored(owner, attempt).await?;
        if let Some(numbers) = self.numbers() {
            self.check_number(numbers, &stored, attempt).await?;
        }
        let inventory = stored.inventory.clone();
        *attempt.held.lock().await = Some(Held {
            owner: owner.clone(),
            stored,
        });
        Ok(inventory)
    }

    /// Checks the number in the inventory. If there is none, the Sync may have been removed in a past that the
    /// management cluster lost.
    async fn check_number(
        &self,
        numbers: &dyn WriteNumbers,
        stored: &Stored,
        attempt: &Attempt,
    ) -> Result<(), MemberError> {
        if let Some(found) = &stored.number {
            return Ok(numbers.check(found).await?);
        }
        if !stored.versions.is_empty() {
            // An earlier version wrote it.
            return Ok(());
        }
        match self.read_removal(numbers.installation(), attempt).await? {
            Some(found) => Ok(numbers.check(&found).await?),
            None => Ok(()),
        }
    }

    /// Leaves the number of a removal on the member, because the inventory goes with the number in it.
    ///
    /// There is one place for all Syncs, and only a Sync without an inventory reads it otherwise. So the number that is
    /// there is checked before it is replaced, and of two removals at the same time the higher number stays.
    async fn record_removal(
        &self,
        numbers: &dyn WriteNumbers,
        number: &WriteNumber,
        attempt: &Attempt,
    ) -> Result<(), MemberError> {
        let installation = numbers.installation();
        let mut tries = 0;
        loop {
            let found = self.read_removal_versioned(installation, attempt).await?;
            let version = match &found {
                Some((_, found)) if found.is_later_than(number) => {
                    return Ok(numbers.check(found).await?);
                }
                Some((version, found)) => {
                    numbers.check(found).await?;
                    Some(version)
                }
                None => None,
            };
            match self.write_removal(installation, version, number, attempt).await {
                // Another removal came in between.
                Err(MemberError::Conflict { .. }) if tries < REMOVAL_TRIES => tries += 1,
                written => return written,
            }
        }
    }

    /// Leaves a number with the objects of an owner that stay on the member without a Sync. People may change them from
    /// now on, so a management cluster that does not know of it must not write them again. A member without an
    /// inventory of the owner has no such objects.
    ///
    /// # Errors
    /// As [`Self::read_inventory`]; [`MemberError::SetBack`] if the management cluster was set back, and
    /// [`MemberError::NoNumber`] if it gave no number.
    pub async fn record_release(&self, owner: &OwnerLabel, deadline: Instant) -> Result<(), MemberError> {
        let attempt = Attempt::until(deadline);
        self.hold_inventory(owner, &attempt).await?;
        self.before_write(&attempt).await
    }

    /// Writes the inventory of an attempt, unless it is unchanged.
    ///
    /// # Errors
    /// As [`Self::write_stored`], and if there is no number for the write.
    pub(super) async fn write_held(&self, desired: &Inventory, attempt: &Attempt) -> Result<(), MemberError> {
        let mut held = attempt.held.lock().await;
        let Some(Held { owner, stored }) = held.as_mut() else {
            return Ok(());
        };
        if stored.inventory == *desired {
            return Ok(());
        }
        let number = self.number(attempt).await?;
        if let (Some(numbers), Some(number), true) = (self.numbers(), &number, desired.is_empty()) {
            self.record_removal(numbers, number, attempt).await?;
        }
        stored.number = number.or(stored.number.take());
        self.write_stored(owner, stored, desired, attempt).await
    }

    /// Allows the first write of an object: takes a number and writes it to the inventory, if the inventory does not
    /// have it yet.
    pub(super) async fn before_write(&self, attempt: &Attempt) -> Result<(), MemberError> {
        self.check_refusal(attempt).await?;
        let number = self.number(attempt).await?;
        let mut held = attempt.held.lock().await;
        let Some(Held { owner, stored }) = held.as_mut() else {
            return Ok(());
        };
        match number {
            Some(number) if stored.number.as_ref() != Some(&number) => {
                self.write_number(owner, stored, number, attempt).await
            }
            // A member without an inventory gets one with the claim, before any object.
            Some(_) | None => Ok(()),
        }
    }

    /// Checks that nothing forbids to write objects.
    pub(super) async fn check_refusal(&self, attempt: &Attempt) -> Result<(), MemberError> {
        // Requests of probes and checks write no objects.
        if attempt.held.lock().await.is_none() {
            return Ok(());
        }
        match self.numbers().and_then(WriteNumbers::refusal) {
            Some(refusal) => Err(refusal.into()),
            None => Ok(()),
        }
    }

    /// Writes the number to the first shard, whose entries stay.
    async fn write_number(
        &self,
        owner: &OwnerLabel,
        stored: &mut Stored,
        number: WriteNumber,
        attempt: &Attempt,
    ) -> Result<(), MemberError> {
        let Some(version) = stored.versions.first_mut() else {
            return Ok(());
        };
        let text = format::with_number(&stored.first, &number);
        let name = format::shard_name(owner, 0);
        *version = self
            .as_kubeconfig_user()
            .write_shard(&name, version, &text, attempt)
            .await?;
        stored.first = text;
        stored.number = Some(number);
        Ok(())
    }

    /// Returns the number of an attempt, which is taken once; `None` if nobody counts.
    async fn number(&self, attempt: &Attempt) -> Result<Option<WriteNumber>, MemberError> {
        let Some(numbers) = self.numbers() else {
            return Ok(None);
        };
        let taken = attempt
            .number
            .get_or_try_init(async || numbers.take().await.map_err(MemberError::from));
        let taken = timeout_at(attempt.deadline, taken).await;
        let taken = taken.map_err(|elapsed| MemberError::NoNumber {
            source: elapsed.into(),
        })?;
        Ok(Some(taken?.clone()))
    }
}
