//! Progress bars in a terminal, plain lines elsewhere.

use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use starling_api::{ClusterCounts, RolloutPhase};

/// The output of the demo.
#[derive(Clone)]
pub(super) struct Display {
    bars: MultiProgress,
}

/// The progress of one rollout.
pub(super) struct Bar {
    display: Display,
    bar: ProgressBar,
}

impl Display {
    pub(super) fn new() -> Self {
        Self {
            bars: MultiProgress::new(),
        }
    }

    #[expect(clippy::print_stdout, reason = "the output of this command")]
    pub(super) fn line(&self, text: &str) {
        // Lines go above the bars; without a terminal indicatif prints nothing.
        self.bars.suspend(|| println!("{text}"));
    }

    pub(super) fn bar(&self, clusters: usize) -> Bar {
        let bar = self.bars.add(ProgressBar::new(clusters as u64));
        if let Ok(style) = ProgressStyle::with_template("  {spinner} [{bar:30}] {pos}/{len} clusters  {msg}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Bar {
            display: self.clone(),
            bar,
        }
    }
}

impl Bar {
    pub(super) fn show(&self, clusters: &ClusterCounts, phase: RolloutPhase) {
        let text = format!(
            "{phase:?}: {} updated, {} progressing, {} pending, {} failed",
            clusters.updated, clusters.progressing, clusters.pending, clusters.failed
        );
        if self.bar.is_hidden() {
            self.display.line(&format!("  {text}"));
        }
        self.bar.set_position(clusters.updated.into());
        self.bar.set_message(text);
    }

    pub(super) fn finish(self, text: &str) {
        self.bar.finish_and_clear();
        self.display.line(&format!("  {text}"));
    }
}
