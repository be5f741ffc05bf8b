//! Broken rules: what, where, and the figures.

use std::fmt;

use super::{
    ComponentRule, DeviceRule, JobRule, KeptRule, LayoutRule, MemoryRule, OptionsRule, PlanRule,
};
use crate::limits::MEMORY_BYTES_MAX;
use crate::phase::Phase;
use crate::plan::DeviceId;
use crate::units::Bytes;

/// Most violations of one plan that are listed: a document that is made to break more would only
/// take memory.
pub const VIOLATIONS_MAX: usize = 1024;

/// Most violations that are shown to people.
pub const SHOWN_MAX: usize = 8;

/// Most characters of a name that are shown.
const NAME_CHARS_SHOWN_MAX: usize = 256;

/// Rules, each with the sentence that it is broken by, in which its figures stand.
macro_rules! rules {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $($rule:ident $({ $($figure:ident: $type:ty),+ })? = $sentence:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, thiserror::Error)]
        #[expect(missing_docs, reason = "each figure is named by its rule's sentence")]
        pub enum $name {
            $(
                #[doc = concat!("“", $sentence, "”")]
                #[error($sentence)]
                $rule $({ $($figure: $type),+ })?,
            )+
        }
    };
}

/// A rule that a plan, or a part of one, breaks.
///
/// The rules of a component, a device or a layout are told after its name, with what joins them.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Violation {
    /// Of the plan as a whole.
    #[error(transparent)]
    Plan(#[from] PlanRule),
    /// Of the job's shape.
    #[error(transparent)]
    Job(#[from] JobRule),
    /// Of the options.
    #[error(transparent)]
    Options(#[from] OptionsRule),
    /// Of devices: how they are described.
    #[error("{}{rule}", shortened(&device.0))]
    Device {
        /// The device.
        device: DeviceId,
        /// What it breaks.
        rule: DeviceRule,
    },
    /// Of a list: two of its entries have one name, or it is too long or empty.
    #[error(transparent)]
    List(#[from] ListRule),
    /// Of a component: where it is, when its weights are there, its sums.
    #[error("{}{rule}", shortened(component))]
    Component {
        /// The component.
        component: String,
        /// What it breaks.
        rule: ComponentRule,
    },
    /// Of a question for sizes.
    #[error("{}{rule}", shortened(component))]
    Layout {
        /// The component that is laid out.
        component: String,
        /// What it breaks.
        rule: LayoutRule,
    },
    /// Of the memory of a device, or of the host, in a phase or between jobs.
    #[error("{}{}{rule}", shortened(&device.0), in_phase(*phase))]
    Memory {
        /// The device.
        device: DeviceId,
        /// The phase; `None` for all of them.
        phase: Option<Phase>,
        /// What it breaks.
        rule: MemoryRule,
    },
    /// A size that no machine has. Under this limit no sum of a plan's sizes overflows, here or
    /// where it is executed.
    #[error("{}: {} B is more memory than there is", shortened(owner), bytes.0)]
    TooMuch {
        /// What is that large.
        owner: String,
        /// Its size.
        bytes: Bytes,
    },
    /// In one phase, the host and integrated devices together are above what their one memory has
    /// for them.
    #[error(
        "{phase}: the host and integrated devices take {together} B of one memory, which has {pool} B for them"
    )]
    Pool {
        /// The phase.
        phase: Phase,
        /// What they take.
        together: u64,
        /// What there is.
        pool: u64,
    },
    /// Of a plan that keeps the weights of a loaded one.
    #[error(transparent)]
    Kept(#[from] KeptRule),
}

rules! {
    /// What holds of lists.
    pub enum ListRule {
        Components { count: usize } = "{count} components",
        Devices { count: usize } = "{count} devices",
        Layouts { count: usize } = "{count} layouts",
        ComponentTwice { component: String } = "component {component} stands twice",
        DeviceTwice { device: DeviceId } = "device {device} stands twice",
        HostAmongDevices = "the host stands among the devices",
        DeviceIdLength { length: usize } = "a device id of {length} bytes",
    }
}

/// The beginning of a name: one that breaks the limit of its length is not shown whole.
fn shortened(name: &str) -> &str {
    let end = name.char_indices().nth(NAME_CHARS_SHOWN_MAX).map_or(name.len(), |(end, _)| end);
    &name[..end]
}

fn in_phase(phase: Option<Phase>) -> String {
    phase.map_or(String::new(), |phase| format!(", {phase}"))
}

/// All rules that are broken; as an error, at least one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Violations(Vec<Violation>);

impl Violations {
    /// In the order in which they were found.
    pub fn iter(&self) -> std::slice::Iter<'_, Violation> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is broken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is wrong, for people: a line each, the first [`SHOWN_MAX`] of them.
    pub fn sentences(&self) -> String {
        let shown: Vec<String> = self.iter().take(SHOWN_MAX).map(Violation::to_string).collect();
        let mut text = shown.join("\nalso: ");
        if self.len() > SHOWN_MAX {
            text.push_str(&format!("\nand {} more", self.len() - SHOWN_MAX));
        }
        text
    }

    pub(super) fn add(&mut self, violation: impl Into<Violation>) {
        if self.0.len() < VIOLATIONS_MAX {
            self.0.push(violation.into());
        }
    }

    /// Notes a rule that does not hold.
    pub(super) fn ensure<V: Into<Violation>>(&mut self, holds: bool, rule: impl FnOnce() -> V) {
        if !holds {
            self.add(rule());
        }
    }

    pub(super) fn ensure_memory(&mut self, owner: &str, sizes: &[Bytes]) {
        for &bytes in sizes {
            self.ensure(bytes.0 <= MEMORY_BYTES_MAX, || Violation::TooMuch {
                owner: owner.to_owned(),
                bytes,
            });
        }
    }

    pub(super) fn result(self) -> Result<(), Violations> {
        if self.is_empty() { Ok(()) } else { Err(self) }
    }
}

impl<'a> IntoIterator for &'a Violations {
    type Item = &'a Violation;
    type IntoIter = std::slice::Iter<'a, Violation>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl std::error::Error for Violations {}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the plan breaks a rule: {}", self.sentences())
    }
}
