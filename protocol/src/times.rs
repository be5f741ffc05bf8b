//! Times by phase: as plans predict them, and as usage reports measure them.
//!
//! In documents and messages both are one flat record: `load`, `encode`, `condition`,
//! `denoise_step`, `decode`, `total`, and of a prediction `next_total`.

use std::fmt;
use std::ops::{Index, IndexMut};

use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::phase::Phase;

const PHASES: usize = Phase::ALL.len();

/// The record's keys: the phases', then the sums'.
static KEYS: [&str; PHASES + 2] = {
    let mut keys = ["total"; PHASES + 2];
    let mut phase = 0;
    while phase < PHASES {
        keys[phase] = match Phase::ALL[phase] {
            Phase::Denoise => "denoise_step",
            other => other.name(),
        };
        phase += 1;
    }
    keys[PHASES + 1] = "next_total";
    keys
};

/// Milliseconds of each phase of a job. All weights on their way, in whichever phase, count for
/// [`Phase::Load`] alone; of [`Phase::Denoise`] it is one step, on average. 0 for a phase that the
/// job does not have.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PhaseMs([f64; PHASES]);

impl Index<Phase> for PhaseMs {
    type Output = f64;

    fn index(&self, phase: Phase) -> &f64 {
        &self.0[phase as usize]
    }
}

impl IndexMut<Phase> for PhaseMs {
    fn index_mut(&mut self, phase: Phase) -> &mut f64 {
        &mut self.0[phase as usize]
    }
}

impl<const N: usize> From<[(Phase, f64); N]> for PhaseMs {
    fn from(times: [(Phase, f64); N]) -> PhaseMs {
        let mut phases = PhaseMs::default();
        for (phase, ms) in times {
            phases[phase] = ms;
        }
        phases
    }
}

/// Predicted times, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PredictedMs {
    /// Each phase without loads.
    pub phases: PhaseMs,
    /// From cold start to picture.
    pub total: f64,
    /// The next job on the warm executor, which kept what is resident.
    pub next_total: f64,
}

/// Wall times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MeasuredMs {
    /// Each phase without waiting for weights.
    pub phases: PhaseMs,
    /// The whole job in the executor.
    pub total: f64,
}

impl Serialize for PredictedMs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write("PredictedMs", &self.phases, &[self.total, self.next_total], serializer)
    }
}

impl Serialize for MeasuredMs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write("MeasuredMs", &self.phases, &[self.total], serializer)
    }
}

fn write<S: Serializer>(
    name: &'static str,
    phases: &PhaseMs,
    sums: &[f64],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut record = serializer.serialize_struct(name, PHASES + sums.len())?;
    for (key, ms) in KEYS.iter().zip(phases.0.iter().chain(sums)) {
        record.serialize_field(key, ms)?;
    }
    record.end()
}

impl<'de> Deserialize<'de> for PredictedMs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PredictedMs, D::Error> {
        let (phases, [total, next_total]) = read("PredictedMs", deserializer)?;
        Ok(PredictedMs { phases, total, next_total })
    }
}

impl<'de> Deserialize<'de> for MeasuredMs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MeasuredMs, D::Error> {
        let (phases, [total]) = read("MeasuredMs", deserializer)?;
        Ok(MeasuredMs { phases, total })
    }
}

fn read<'de, const SUMS: usize, D: Deserializer<'de>>(
    name: &'static str,
    deserializer: D,
) -> Result<(PhaseMs, [f64; SUMS]), D::Error> {
    deserializer.deserialize_struct(name, &KEYS[..PHASES + SUMS], Record::<SUMS>)
}

/// A record with so many sums, every key of which must be there.
struct Record<const SUMS: usize>;

impl<'de, const SUMS: usize> Visitor<'de> for Record<SUMS> {
    type Value = (PhaseMs, [f64; SUMS]);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("times in milliseconds")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
        collect(|_| sequence.next_element())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = [None; PHASES + 2];
        while let Some(key) = map.next_key::<String>()? {
            match KEYS[..PHASES + SUMS].iter().position(|known| *known == key) {
                Some(at) if found[at].is_some() => return Err(A::Error::duplicate_field(KEYS[at])),
                Some(at) => found[at] = Some(map.next_value()?),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        collect(|at| Ok(found[at]))
    }
}

/// The times by the places of their keys.
fn collect<const SUMS: usize, E: Error>(
    mut ms: impl FnMut(usize) -> Result<Option<f64>, E>,
) -> Result<(PhaseMs, [f64; SUMS]), E> {
    let mut take = |at: usize| ms(at)?.ok_or_else(|| E::missing_field(KEYS[at]));
    let (mut phases, mut sums) = (PhaseMs::default(), [0.0; SUMS]);
    for (at, phase) in phases.0.iter_mut().enumerate() {
        *phase = take(at)?;
    }
    for (at, sum) in sums.iter_mut().enumerate() {
        *sum = take(PHASES + at)?;
    }
    Ok((phases, sums))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREDICTED: &str = r#"{"load":1.0,"encode":0.0,"condition":2.0,"denoise_step":3.0,"decode":4.0,"total":5.0,"next_total":6.0}"#;

    fn predicted() -> PredictedMs {
        let phases = [
            (Phase::Load, 1.0),
            (Phase::Condition, 2.0),
            (Phase::Denoise, 3.0),
            (Phase::Decode, 4.0),
        ];
        PredictedMs { phases: PhaseMs::from(phases), total: 5.0, next_total: 6.0 }
    }

    #[test]
    fn documents_are_flat_and_read_back() {
        assert_eq!(serde_json::to_string(&predicted()).unwrap(), PREDICTED);
        assert_eq!(serde_json::from_str::<PredictedMs>(PREDICTED).unwrap(), predicted());
        let measured = MeasuredMs { phases: predicted().phases, total: 5.0 };
        let text = serde_json::to_string(&measured).unwrap();
        assert_eq!(text, PREDICTED.replace(r#","next_total":6.0"#, ""));
        // What is beside the keys is no concern of this record.
        assert_eq!(serde_json::from_str::<MeasuredMs>(PREDICTED).unwrap(), measured);
    }

    #[test]
    fn every_key_stands_once() {
        for (wrong, why) in [
            (PREDICTED.replace(r#""encode":0.0,"#, ""), "missing field `encode`"),
            (PREDICTED.replace("decode", "load"), "duplicate field `load`"),
        ] {
            let error = serde_json::from_str::<PredictedMs>(&wrong).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn each_phase_has_its_place() {
        for (at, phase) in Phase::ALL.into_iter().enumerate() {
            assert_eq!(phase as usize, at);
        }
    }
}
