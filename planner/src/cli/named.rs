//! Values of closed sets as the command line names them, with what its help says of each.

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use protocol::sampler::Names;
use protocol::{Sampler, Scheduler};

use crate::policy::Objective;

impl ValueEnum for Objective {
    fn value_variants<'a>() -> &'a [Objective] {
        &Objective::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Objective::Latency => "Least predicted time from cold start to picture",
            Objective::Throughput => "Least predicted time of the next job on a warm executor",
            Objective::Memory => {
                "Least bytes on devices and host together, with weights that the host reads in \
                 place from their files"
            }
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}

/// Reads a denoising rule by one of its names.
pub fn sampler() -> impl TypedValueParser<Value = Sampler> {
    let values = PossibleValuesParser::new(Sampler::ALL.map(|sampler| value(sampler.names())));
    values.try_map(|name| Sampler::named(&name).ok_or("there is no such sampler"))
}

/// Reads a table of noise levels by one of its names.
pub fn scheduler() -> impl TypedValueParser<Value = Scheduler> {
    let values = PossibleValuesParser::new(Scheduler::ALL.map(|table| value(table.names())));
    values.try_map(|name| Scheduler::named(&name).ok_or("there is no such scheduler"))
}

/// A name with its aliases, which help and completions leave out.
fn value(names: Names) -> PossibleValue {
    PossibleValue::new(names.name).alias(names.label).aliases(names.aliases)
}
