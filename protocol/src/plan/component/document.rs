//! A component's assignment as it stands in documents and on the wire.
//!
//! A document names its division in a word and each segment's device by its id, for people and
//! other programs; the shares of rows are there too, empty without a row split, and where there are
//! such splits the shares of a tensor split and the items of each device, or of each group of a
//! pipeline. Inside the program one [`Division`] says all of it. A document that contradicts itself
//! is refused where it is read.

use serde::ser::{Error, SerializeStruct};
use serde::{Deserialize, Serialize, Serializer};

use super::{ComponentPlan, DeviceId, PartPlan, Phase, Residency, SegmentPlan};
use crate::division::{Division, Placement};
use crate::limits::DEVICES_MAX;
use crate::units::Bytes;

/// The keys of [`ComponentPlan`] in a document, in their order.
#[derive(Deserialize)]
pub(super) struct ComponentDocument {
    name: String,
    phase: Phase,
    placement: Placement,
    devices: Vec<DeviceId>,
    row_shares: Vec<u32>,
    #[serde(default)]
    tensor_shares: Vec<u32>,
    #[serde(default)]
    item_counts: Vec<u32>,
    residency: Residency,
    lookahead: u32,
    prefetch: bool,
    parts: Vec<PartPlan>,
    segments: Vec<SegmentDocument>,
    weights_bytes: Bytes,
    tensor_bytes: Bytes,
    #[serde(default)]
    predicted_load_ms: f64,
    #[serde(default)]
    predicted_compute_ms: f64,
    reason: String,
}

/// The keys of [`SegmentPlan`], and where the segment computes.
#[derive(Deserialize)]
struct SegmentDocument {
    name: String,
    device: DeviceId,
    residency: Residency,
    #[serde(default)]
    device_residencies: Vec<Residency>,
    weights_bytes: Bytes,
    part_bytes: Vec<Bytes>,
}

impl Serialize for ComponentPlan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let plan = self.clone();
        let segments = plan.segments.into_iter().enumerate().map(|(index, segment)| {
            let residency = segment.residency();
            let SegmentPlan { name, residencies, weights_bytes, part_bytes } = segment;
            let Some(device) = self.segment_device(index).cloned() else {
                let name = &self.name;
                return Err(S::Error::custom(format!("{name}: segment {index} has no device")));
            };
            Ok(SegmentDocument {
                name,
                device,
                residency,
                device_residencies: residencies,
                weights_bytes,
                part_bytes,
            })
        });
        let document = ComponentDocument {
            placement: self.placement(),
            row_shares: self.division.row_shares().unwrap_or_default().to_vec(),
            tensor_shares: self.division.tensor_shares().unwrap_or_default().to_vec(),
            item_counts: self.division.item_counts().unwrap_or_default().to_vec(),
            segments: segments.collect::<Result<_, _>>()?,
            name: plan.name,
            phase: plan.phase,
            devices: plan.devices,
            residency: plan.residency,
            lookahead: plan.lookahead,
            prefetch: plan.prefetch,
            parts: plan.parts,
            weights_bytes: plan.weights_bytes,
            tensor_bytes: plan.tensor_bytes,
            predicted_load_ms: plan.predicted_load_ms,
            predicted_compute_ms: plan.predicted_compute_ms,
            reason: plan.reason,
        };
        document.serialize(serializer)
    }
}

/// Documents name `tensor_shares` and `item_counts` where there are some; the wire, which has no
/// names, always has all fields.
impl Serialize for ComponentDocument {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all = !serializer.is_human_readable();
        let [has_shares, has_counts] =
            [&self.tensor_shares, &self.item_counts].map(|numbers| all || !numbers.is_empty());
        let count = 15 + usize::from(has_shares) + usize::from(has_counts);
        let mut fields = serializer.serialize_struct("ComponentDocument", count)?;
        fields.serialize_field("name", &self.name)?;
        fields.serialize_field("phase", &self.phase)?;
        fields.serialize_field("placement", &self.placement)?;
        fields.serialize_field("devices", &self.devices)?;
        fields.serialize_field("row_shares", &self.row_shares)?;
        if has_shares {
            fields.serialize_field("tensor_shares", &self.tensor_shares)?;
        }
        if has_counts {
            fields.serialize_field("item_counts", &self.item_counts)?;
        }
        fields.serialize_field("residency", &self.residency)?;
        fields.serialize_field("lookahead", &self.lookahead)?;
        fields.serialize_field("prefetch", &self.prefetch)?;
        fields.serialize_field("parts", &self.parts)?;
        fields.serialize_field("segments", &self.segments)?;
        fields.serialize_field("weights_bytes", &self.weights_bytes)?;
        fields.serialize_field("tensor_bytes", &self.tensor_bytes)?;
        fields.serialize_field("predicted_load_ms", &self.predicted_load_ms)?;
        fields.serialize_field("predicted_compute_ms", &self.predicted_compute_ms)?;
        fields.serialize_field("reason", &self.reason)?;
        fields.end()
    }
}

/// Documents name `device_residencies` where these differ; the wire always has them.
impl Serialize for SegmentDocument {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let differ = self.device_residencies.iter().any(|other| *other != self.residency);
        let has_all = differ || !serializer.is_human_readable();
        let count = 5 + usize::from(has_all);
        let mut fields = serializer.serialize_struct("SegmentDocument", count)?;
        fields.serialize_field("name", &self.name)?;
        fields.serialize_field("device", &self.device)?;
        fields.serialize_field("residency", &self.residency)?;
        if has_all {
            fields.serialize_field("device_residencies", &self.device_residencies)?;
        }
        fields.serialize_field("weights_bytes", &self.weights_bytes)?;
        fields.serialize_field("part_bytes", &self.part_bytes)?;
        fields.end()
    }
}

impl SegmentDocument {
    /// The segment of a component of this name on so many devices.
    fn plan(self, component: &str, devices: usize) -> Result<SegmentPlan, Contradiction> {
        let SegmentDocument { name, residency, device_residencies, .. } = self;
        let residencies = match device_residencies.is_empty() {
            true => vec![residency; devices],
            false => device_residencies,
        };
        let (weights_bytes, part_bytes) = (self.weights_bytes, self.part_bytes);
        let plan = SegmentPlan { name, residencies, weights_bytes, part_bytes };
        if plan.residency() != residency {
            let (name, segment) = (component.to_owned(), plan.name);
            return Err(Contradiction::Residencies { name, segment, residency });
        }
        Ok(plan)
    }
}

/// A component's document that says two things at once.
#[derive(Debug, thiserror::Error)]
pub(super) enum Contradiction {
    #[error("{name} has shares of rows without a row split")]
    Shares { name: String },
    #[error("{name} has shares of heads without a tensor split")]
    Heads { name: String },
    #[error("{name} has counts of items without an item split or a pipeline")]
    Items { name: String },
    #[error("{name}: placement {placement} cannot be on {devices}")]
    Placement { name: String, placement: Placement, devices: String },
    #[error("{name}: segment {segment} is {residency}, and its devices have it otherwise")]
    Residencies { name: String, segment: String, residency: Residency },
    #[error("{name}: segment {segment} is on {device}, and placement {placement} is on {devices}")]
    Segment {
        name: String,
        segment: String,
        device: DeviceId,
        placement: Placement,
        devices: String,
    },
}

impl TryFrom<ComponentDocument> for ComponentPlan {
    type Error = Contradiction;

    fn try_from(document: ComponentDocument) -> Result<ComponentPlan, Contradiction> {
        let division = document.division()?;
        // Of more devices than may be, the plan is refused.
        let devices = document.devices.len().min(DEVICES_MAX + 1);
        let segments = document.segments.into_iter();
        let segments = segments.map(|segment| segment.plan(&document.name, devices));
        let segments = segments.collect::<Result<_, _>>()?;
        Ok(ComponentPlan {
            name: document.name,
            phase: document.phase,
            devices: document.devices,
            division,
            residency: document.residency,
            lookahead: document.lookahead,
            prefetch: document.prefetch,
            parts: document.parts,
            segments,
            weights_bytes: document.weights_bytes,
            tensor_bytes: document.tensor_bytes,
            predicted_load_ms: document.predicted_load_ms,
            predicted_compute_ms: document.predicted_compute_ms,
            reason: document.reason,
        })
    }
}

impl ComponentDocument {
    /// What its placement, shares and segments say together.
    fn division(&self) -> Result<Division, Contradiction> {
        let ComponentDocument { name, placement, devices, .. } = self;
        let ComponentDocument { row_shares, tensor_shares, item_counts, .. } = self;
        let (name, placement) = (name.clone(), *placement);
        if placement != Placement::Row && !row_shares.is_empty() {
            return Err(Contradiction::Shares { name });
        }
        if placement != Placement::Tensor && !tensor_shares.is_empty() {
            return Err(Contradiction::Heads { name });
        }
        let has_items = matches!(placement, Placement::Items | Placement::Pipeline);
        if !has_items && !item_counts.is_empty() {
            return Err(Contradiction::Items { name });
        }
        let on_host = devices.first().is_some_and(DeviceId::is_host);
        let is_one = matches!(placement, Placement::One | Placement::Host);
        if is_one && (devices.len() != 1 || on_host != (placement == Placement::Host)) {
            return Err(Contradiction::Placement { name, placement, devices: self.on() });
        }
        let in_layers = matches!(placement, Placement::Layer | Placement::Pipeline);
        let mut segments = Vec::new();
        for segment in &self.segments {
            let lane = devices.iter().position(|id| *id == segment.device);
            match lane.filter(|lane| in_layers || *lane == 0) {
                Some(lane) => segments.push(lane as u32),
                None => {
                    let (segment, device) = (segment.name.clone(), segment.device.clone());
                    let devices = self.on();
                    return Err(Contradiction::Segment {
                        name,
                        segment,
                        device,
                        placement,
                        devices,
                    });
                }
            }
        }
        Ok(match placement {
            Placement::One | Placement::Host => Division::One,
            Placement::Layer => Division::Layer { segments },
            Placement::Row => Division::Row { shares: row_shares.clone() },
            Placement::Tensor => Division::Tensor { shares: tensor_shares.clone() },
            Placement::Items => Division::Items { counts: item_counts.clone() },
            Placement::Pipeline => Division::Pipeline { segments, counts: item_counts.clone() },
        })
    }

    /// Its devices, for people.
    fn on(&self) -> String {
        let ids: Vec<&str> = self.devices.iter().map(|id| id.0.as_str()).collect();
        if ids.is_empty() { "no device".to_owned() } else { ids.join(", ") }
    }
}
