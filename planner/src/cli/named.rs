//! Values of closed sets as the command line names them, with what its help says of each.

use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::job::request::Sampler;
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

impl ValueEnum for Sampler {
    fn value_variants<'a>() -> &'a [Sampler] {
        &Sampler::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            Sampler::Euler => ("euler", "Flow matching by Euler's method"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}
