//! Which module names of LoRA files stand for which rows of which weights. A family fills this from
//! the weights that its graphs multiply with.
//!
//! Names are compared with dots as underscores: kohya's files write them so, and no two linear
//! layers of a model differ in nothing else.

use std::collections::BTreeMap;

use super::super::TensorRef;

/// What stands before the names of a denoiser's layers: nothing or `transformer.` (diffusers), the
/// others by ComfyUI, kohya's sd-scripts, OneTrainer and LyCORIS.
pub const DENOISER_PREFIXES: [&str; 7] = [
    "",
    "transformer_",
    "diffusion_model_",
    "model_diffusion_model_",
    "lora_unet_",
    "lora_transformer_",
    "lycoris_",
];

/// What stands before module names, for all components of a model.
#[derive(Debug, Default)]
pub struct LoraNames {
    components: Vec<ComponentNames>,
}

/// The names of one component's linear layers.
#[derive(Debug)]
pub struct ComponentNames {
    component: &'static str,
    prefixes: &'static [&'static str],
    targets: BTreeMap<String, Vec<TargetRows>>,
}

/// Rows of a weight that an adapter changes.
#[derive(Debug, Clone)]
pub(super) struct TargetRows {
    /// The weight's name in the checkpoint.
    pub weight: String,
    /// Where its rows begin in the weight.
    pub first_row: usize,
    /// The rows, in the checkpoint: `[rows, in]`.
    pub base: TensorRef,
}

impl LoraNames {
    /// Takes in a component. Where names fit several components, the first that was added gets
    /// them.
    pub fn add(&mut self, names: ComponentNames) {
        self.components.push(names);
    }

    /// The component of a module, and the rows that the rows of its second factor belong to, in
    /// order.
    pub(super) fn resolve(&self, module: &str) -> Option<(&'static str, &[TargetRows])> {
        let flat = flatten(module);
        self.components.iter().find_map(|names| {
            let known = |prefix: &&str| names.targets.get(flat.strip_prefix(prefix)?);
            let rows = names.prefixes.iter().find_map(known)?;
            Some((names.component, rows.as_slice()))
        })
    }
}

impl ComponentNames {
    /// Names for the weights of linear layers `[out, in]`, each with its name in the checkpoint,
    /// which ends in `.weight`. Their modules are known by these names without the end, behind any
    /// of `prefixes`, in which dots are underscores.
    pub fn new<'a>(
        component: &'static str,
        prefixes: &'static [&'static str],
        weights: impl IntoIterator<Item = (&'a str, TensorRef)>,
    ) -> ComponentNames {
        let mut names = ComponentNames { component, prefixes, targets: BTreeMap::new() };
        for (weight, base) in weights {
            let module = weight.strip_suffix(".weight").expect("a linear layer's weight");
            let rows = TargetRows { weight: weight.to_owned(), first_row: 0, base };
            names.insert(module, vec![rows]);
        }
        names
    }

    /// Makes `alias` a name for the layers `modules`, their rows one after the other, unless one of
    /// them is not there.
    pub fn alias(&mut self, alias: &str, modules: &[String]) {
        let known = modules.iter().map(|module| self.targets.get(&flatten(module)));
        if let Some(rows) = known.collect::<Option<Vec<_>>>() {
            let rows = rows.into_iter().flatten().cloned().collect();
            self.insert(alias, rows);
        }
    }

    /// Makes `alias` a name for a layer whose two halves of rows stand the other way round there,
    /// unless it is not there.
    pub fn alias_with_halves_swapped(&mut self, alias: &str, module: &str) {
        let Some([whole]) = self.targets.get(&flatten(module)).map(Vec::as_slice) else { return };
        let half = whole.base.shape()[0] / 2;
        let rows = |from: usize, to: usize| TargetRows {
            weight: whole.weight.clone(),
            first_row: whole.first_row + from,
            base: whole.base.rows(from..to),
        };
        let swapped = vec![rows(half, 2 * half), rows(0, half)];
        self.insert(alias, swapped);
    }

    fn insert(&mut self, name: &str, rows: Vec<TargetRows>) {
        let before = self.targets.insert(flatten(name), rows);
        assert!(before.is_none(), "{name} stands for two layers of {}", self.component);
    }
}

fn flatten(name: &str) -> String {
    name.replace('.', "_")
}
