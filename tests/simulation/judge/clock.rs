//! The controller's clock. Statuses and annotations have times of that clock; journals do not.

use jiff::{SignedDuration, Timestamp};

/// The offset of the clock since each time. Before the first time the clock is right.
#[derive(Clone, Debug, Default)]
pub(crate) struct ControllerClock(pub(crate) Vec<(Timestamp, SignedDuration)>);

impl ControllerClock {
    /// Lets the clock jump.
    pub(crate) fn jump(&mut self, at: Timestamp, by: SignedDuration) {
        let off = self.off_at(at).checked_add(by).unwrap_or(SignedDuration::ZERO);
        self.0.push((at, off));
    }

    fn off_at(&self, at: Timestamp) -> SignedDuration {
        let known = self.0.partition_point(|(since, _)| *since <= at);
        self.0[..known]
            .last()
            .map_or(SignedDuration::ZERO, |(_, off)| *off)
    }

    /// Returns the earliest and the latest time of the clock in a span.
    pub(crate) fn shown(&self, from: Timestamp, to: Timestamp) -> (Timestamp, Timestamp) {
        let shows = |at: Timestamp, off: SignedDuration| at.checked_add(off).unwrap_or(at);
        let (mut least, mut most) = (shows(from, self.off_at(from)), shows(from, self.off_at(from)));
        let mut before = self.off_at(from);
        let jumps = self.0.iter().filter(|(at, _)| *at > from && *at <= to);
        for (at, off) in jumps {
            for shown in [shows(*at, before), shows(*at, *off)] {
                least = least.min(shown);
                most = most.max(shown);
            }
            before = *off;
        }
        let last = shows(to, before);
        (least.min(last), most.max(last))
    }

    /// Returns the first moment before `by` at which the clock showed a time, or `by` if there is none.
    pub(crate) fn when(&self, shown: Timestamp, by: Timestamp) -> Timestamp {
        let mut spans = vec![(Timestamp::MIN, SignedDuration::ZERO)];
        spans.extend(self.0.iter().copied());
        for (place, (since, off)) in spans.iter().enumerate() {
            let until = spans.get(place + 1).map_or(Timestamp::MAX, |(next, _)| *next);
            let Ok(at) = shown.checked_sub(*off) else { continue };
            if at >= *since && at < until && at <= by {
                return at;
            }
        }
        by
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    #[test]
    fn a_displayed_time_is_converted_back() {
        let mut clock = ControllerClock::default();
        clock.jump(t(100), SignedDuration::from_secs(60));
        clock.jump(t(200), SignedDuration::from_secs(-90));
        assert_eq!(clock.shown(t(0), t(50)), (t(0), t(50)));
        assert_eq!(clock.shown(t(90), t(110)), (t(90), t(170)));
        assert_eq!(clock.shown(t(190), t(210)), (t(170), t(260)));
        assert_eq!(clock.when(t(50), t(300)), t(50));
        // Shown twice: the first time counts, and never one after the limit.
        assert_eq!(clock.when(t(180), t(300)), t(120));
        assert_eq!(clock.when(t(250), t(300)), t(190));
        assert_eq!(clock.when(t(130), t(115)), t(115));
    }
}
