//! The flag for previews.

use clap::Args;

/// Whether the picture is to be seen while it is made.
#[derive(Debug, Args)]
pub struct PreviewArguments {
    /// Show what the picture will be like, every N steps: a rough PNG beside the output, as
    /// berth.preview.png for berth.png; of a batch the first picture. It is removed when the job
    /// ends [default: none]
    #[arg(long, value_name = "N")]
    pub preview: Option<u32>,
}
