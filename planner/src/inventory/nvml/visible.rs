//! Which GPUs and MIG instances a CUDA process may see: `CUDA_VISIBLE_DEVICES`, which NVML ignores.
//!
//! Pure: names in, choices out. Ids follow the PCI bus order, whatever the variable's order: they
//! are for people, the UUID is what the executor opens. Ordinals are CUDA's own numbers, and follow
//! the variable.

/// The names of one GPU, as NVML tells them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuNames {
    /// `GPU-…`
    pub uuid: String,
    /// Whether it is in MIG mode: then CUDA sees its instances only.
    pub mig: bool,
    /// `MIG-…` of each instance, in NVML's order.
    pub instances: Vec<String>,
}

/// A GPU, or one of its instances, by their positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct VisibleGpu {
    /// The position of the GPU.
    pub gpu: usize,
    /// The position of the instance within it.
    pub instance: Option<usize>,
}

/// Those of `gpus` that a CUDA process sees, in PCI bus order: what [`order`] says.
pub fn choose(visible: Option<&str>, gpus: &[GpuNames]) -> Vec<VisibleGpu> {
    let mut choices = order(visible, gpus);
    choices.sort_unstable();
    choices
}

/// Chooses among `gpus`, which are in PCI bus order, by the rules that CUDA documents for the
/// variable, in the order in which CUDA numbers them under `CUDA_DEVICE_ORDER=PCI_BUS_ID`:
///
/// - unset: every GPU; empty: none;
/// - a list of positions in PCI bus order, and of UUIDs or unambiguous beginnings of them (`GPU-…`,
///   `MIG-…`); the
///   first entry that names nothing ends the list;
/// - a GPU in MIG mode stands for its first instance; a CUDA process sees one instance at most, and
///   beside it no
///   other GPU, so with any instance shown the first one is the only choice.
pub fn order(visible: Option<&str>, gpus: &[GpuNames]) -> Vec<VisibleGpu> {
    let choices = match visible {
        None => (0..gpus.len()).filter_map(|gpu| whole_or_first(gpus, gpu)).collect(),
        Some(list) => listed(list, gpus),
    };
    let instances = choices.iter().copied().filter(|choice| choice.instance.is_some());
    if let Some(instance) = instances.min() {
        return vec![instance];
    }
    let mut ordered = Vec::new();
    for choice in choices {
        if !ordered.contains(&choice) {
            ordered.push(choice);
        }
    }
    ordered
}

fn listed(list: &str, gpus: &[GpuNames]) -> Vec<VisibleGpu> {
    let mut choices = Vec::new();
    for entry in list.split(',') {
        let Some(named) = named(entry.trim(), gpus) else { break };
        choices.extend(named);
    }
    choices
}

/// What an entry names: `None` where it is invalid, `Some(None)` where it is a GPU in MIG mode
/// without instances.
fn named(entry: &str, gpus: &[GpuNames]) -> Option<Option<VisibleGpu>> {
    if let Ok(position) = entry.parse::<usize>() {
        return (position < gpus.len()).then(|| whole_or_first(gpus, position));
    }
    if entry.starts_with("GPU-") {
        let all = gpus.iter().enumerate().map(|(gpu, names)| (gpu, &names.uuid));
        return Some(whole_or_first(gpus, only_match(entry, all)?));
    }
    if entry.starts_with("MIG-") {
        let all = gpus.iter().enumerate().flat_map(|(gpu, names)| {
            let of_gpu = names.instances.iter().enumerate();
            of_gpu.map(move |(instance, uuid)| (VisibleGpu { gpu, instance: Some(instance) }, uuid))
        });
        return only_match(entry, all).map(Some);
    }
    None
}

fn only_match<'a, T>(start: &str, all: impl Iterator<Item = (T, &'a String)>) -> Option<T> {
    let mut matching = all.filter(|(_, uuid)| uuid.starts_with(start));
    let (first, _) = matching.next()?;
    matching.next().is_none().then_some(first)
}

fn whole_or_first(gpus: &[GpuNames], gpu: usize) -> Option<VisibleGpu> {
    let names = &gpus[gpu];
    match (names.mig, names.instances.is_empty()) {
        (false, _) => Some(VisibleGpu { gpu, instance: None }),
        (true, false) => Some(VisibleGpu { gpu, instance: Some(0) }),
        (true, true) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(uuid: &str, instances: Option<&[&str]>) -> GpuNames {
        GpuNames {
            uuid: uuid.to_owned(),
            mig: instances.is_some(),
            instances: instances.unwrap_or(&[]).iter().map(|uuid| (*uuid).to_owned()).collect(),
        }
    }

    #[test]
    fn the_list_is_read_as_cuda_reads_it() {
        let gpus = [gpu("GPU-aa11", None), gpu("GPU-aa22", None), gpu("GPU-bb33", None)];
        for (visible, expected) in [
            (None, vec![0, 1, 2]),
            (Some(""), vec![]),
            (Some("-1"), vec![]),
            (Some("1"), vec![1]),
            (Some("2,0"), vec![0, 2]),
            (Some(" 0 , 1 "), vec![0, 1]),
            (Some("0,2,-1,1"), vec![0, 2]),
            (Some("0,7,1"), vec![0]),
            (Some("1,1"), vec![1]),
            (Some("GPU-bb"), vec![2]),
            (Some("GPU-aa22,0"), vec![0, 1]),
            // Ambiguous, unknown, and nonsense entries end the list.
            (Some("2,GPU-aa,0"), vec![2]),
            (Some("GPU-cc,0"), vec![]),
            (Some("cuda0"), vec![]),
            (Some("99999999999999999999999"), vec![]),
        ] {
            let chosen: Vec<usize> = choose(visible, &gpus).iter().map(|c| c.gpu).collect();
            assert_eq!(chosen, expected, "{visible:?}");
        }
    }

    #[test]
    fn ordinals_follow_the_list() {
        let gpus = [gpu("GPU-aa11", None), gpu("GPU-aa22", None), gpu("GPU-bb33", None)];
        for (visible, expected) in [
            (None, vec![0, 1, 2]),
            (Some("2,0"), vec![2, 0]),
            (Some("1,GPU-bb,1,0"), vec![1, 2, 0]),
        ] {
            let ordered: Vec<usize> = order(visible, &gpus).iter().map(|c| c.gpu).collect();
            assert_eq!(ordered, expected, "{visible:?}");
        }
    }

    #[test]
    fn an_instance_excludes_everything_else() {
        let gpus = [
            gpu("GPU-a", None),
            gpu("GPU-b", Some(&["MIG-b1", "MIG-b2"])),
            gpu("GPU-c", Some(&[])),
        ];
        let (first, second) =
            (VisibleGpu { gpu: 1, instance: Some(0) }, VisibleGpu { gpu: 1, instance: Some(1) });
        assert_eq!(choose(None, &gpus), [first]);
        assert_eq!(choose(Some("1"), &gpus), [first]);
        assert_eq!(choose(Some("MIG-b2"), &gpus), [second]);
        assert_eq!(choose(Some("MIG-b2,MIG-b1"), &gpus), [first]);
        assert_eq!(choose(Some("MIG-b"), &gpus), []);
        assert_eq!(choose(Some("0"), &gpus), [VisibleGpu { gpu: 0, instance: None }]);
        assert_eq!(choose(Some("2"), &gpus), []);
    }
}
