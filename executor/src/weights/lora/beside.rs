//! Adapters computed beside their layers: the factors become tensors of the component, named after
//! their file and module.

use std::sync::Arc;

use super::LinearAdapter;
use super::adapter::Adapter;
use crate::weights::{WeightFiles, WeightsError};

/// The component's weights with the factors among them.
pub(super) fn beside(
    weights: &Arc<WeightFiles>,
    adapters: &[Adapter],
    files: &[WeightFiles],
) -> Result<WeightFiles, WeightsError> {
    let mut extended = WeightFiles::clone(weights);
    for adapter in adapters {
        let file = &files[adapter.file];
        let prefix = format!("lora.{}.{}", adapter.file, adapter.module);
        let a = format!("{prefix}.lora_A");
        let mut b = format!("{prefix}.lora_B");
        if adapter.part_of_b {
            b.push_str(&format!(".{}.{}", adapter.weight, adapter.first_row));
        }
        extended.take_in(a.clone(), &adapter.a, file)?;
        extended.take_in(b.clone(), &adapter.b, file)?;
        let linear = LinearAdapter {
            a,
            b,
            rank: adapter.rank(),
            first_row: adapter.first_row,
            rows: adapter.rows(),
            scale: adapter.scale as f32,
        };
        extended.add_adapter(&adapter.weight, linear);
    }
    Ok(extended)
}
