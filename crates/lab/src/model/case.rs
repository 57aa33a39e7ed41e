//! What a figure is of: its place on an axis, and its unit.

use serde::{Deserialize, Serialize};

/// What a figure is of. Figures of the same case are comparable; cases that differ only in `x` make a line of a chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// `write`, `random read`, `rewrite`: what a bar or a line stands for.
    pub operation: String,
    /// What tells several charts of one operation apart, such as `file of 64 MiB`; empty where there is one.
    #[serde(default)]
    pub series: String,
    /// The place on the horizontal axis, if there is one.
    pub x: Option<f64>,
    /// What `x` is.
    pub axis: Axis,
}

/// What the horizontal axis of a chart counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// There is none.
    #[default]
    None,
    /// Bytes of a request.
    Block,
    /// Bytes of a file.
    File,
    /// Clients.
    Clients,
    /// Open volumes.
    Volumes,
    /// Bytes of a volume.
    Size,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes per second.
    BytesPerS,
    /// Operations per second: seeks, files, requests.
    PerS,
    /// Seconds: of a task, or a latency.
    Seconds,
    /// Seconds of extra cost: to create or unlock a volume, or processor time per 10^9 bytes.
    CostSeconds,
    /// Bytes of memory.
    Bytes,
    /// A share: 0.25 is 25 %. Of processor time, it is of one processor and can be more than 1.
    Share,
    /// How many, such as context switches for each request.
    Count,
}

impl Unit {
    /// Whether it is a performance, of which encryption takes a share. Extra costs have no loss: a volume without
    /// encryption takes no time to unlock.
    pub fn is_performance(self) -> bool {
        matches!(self, Self::BytesPerS | Self::PerS | Self::Seconds)
    }

    /// Whether more is better.
    pub fn more_is_better(self) -> bool {
        matches!(self, Self::BytesPerS | Self::PerS)
    }
}

impl Case {
    /// A case without an axis.
    pub fn new(operation: impl Into<String>) -> Self {
        Self { operation: operation.into(), series: String::new(), x: None, axis: Axis::None }
    }

    /// The case at this place of an axis.
    pub fn at(self, axis: Axis, x: f64) -> Self {
        Self { axis, x: Some(x), ..self }
    }

    /// The case in this series.
    pub fn of(self, series: impl Into<String>) -> Self {
        Self { series: series.into(), ..self }
    }
}
