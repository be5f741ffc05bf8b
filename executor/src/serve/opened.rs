//! The models that are open: one as its files are, and one with the LoRA files of the last request.
//!
//! Sizes are asked of a model whose weights LoRA has not touched yet: what changing them takes is
//! counted, nothing is changed before a plan is loaded.

use std::sync::Arc;

use protocol::plan::Lora;
use protocol::{Failure, GraphOptions, JobShape, ModelSource, Plan};

use crate::backend::CancelFlag;
use crate::failure::internal;
use crate::families;
use crate::models::Model;
use crate::runtime::WatchedFiles;
use crate::weights::lora::{LoraMode, LoraReport, LoraSource, Loras};

/// Most keys that a notice names.
const NAMED_KEYS_MAX: usize = 4;

/// Models and adapters that are open, so that no file is opened twice.
#[derive(Default)]
pub struct OpenModels {
    base: Option<(ModelSource, Arc<dyn Model>)>,
    adapted: Option<AdaptedModel>,
}

struct AdaptedModel {
    model: ModelSource,
    files: Vec<Lora>,
    loras: Loras,
}

impl OpenModels {
    /// A model for questions about its sizes for a job.
    pub fn sized(
        &mut self,
        source: &ModelSource,
        job: &JobShape,
        options: &GraphOptions,
    ) -> Result<Arc<dyn Model>, Failure> {
        let base = self.base(source)?;
        if options.loras.is_empty() {
            return Ok(base);
        }
        let mode = |component: &str| {
            is_runtime(&*base, job, options, component).then_some(LoraMode::Runtime)
        };
        let loras = self.loras(source, &*base, options)?;
        Ok(base.with_loras(loras, &mode, &|| false)?)
    }

    /// A plan's model, with its LoRA files applied.
    pub fn loaded(&mut self, plan: &Plan, cancel: &CancelFlag) -> Result<Arc<dyn Model>, Failure> {
        let base = self.base(&plan.model)?;
        let options = &plan.options;
        if options.loras.is_empty() {
            return Ok(base);
        }
        let mode = |component: &str| {
            let runtime = is_runtime(&*base, &plan.job, options, component);
            Some(if runtime { LoraMode::Runtime } else { LoraMode::Immediately })
        };
        let loras = self.loras(&plan.model, &*base, options)?;
        let threads = plan.host.threads as usize;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let stop = || cancel.check().is_err();
        let apply = || base.with_loras(loras, &mode, &stop);
        Ok(pool.map_err(internal)?.install(apply)?)
    }

    /// The files of a plan's model, and of its LoRA.
    pub fn watched(&self, plan: &Plan, model: &dyn Model) -> WatchedFiles {
        let components = plan.components.iter().map(|component| &component.name);
        let of_model = components.flat_map(|name| model.files(name).mappings());
        let adapted = self.adapted.as_ref().filter(|_| !plan.options.loras.is_empty());
        let of_loras = adapted.into_iter().flat_map(|adapted| adapted.loras.mappings());
        WatchedFiles::new(of_model.chain(of_loras).cloned())
    }

    /// What the user should know of a request's LoRA files.
    pub fn notices(
        &mut self,
        source: &ModelSource,
        options: &GraphOptions,
    ) -> Result<Vec<String>, Failure> {
        if options.loras.is_empty() {
            return Ok(Vec::new());
        }
        let base = self.base(source)?;
        Ok(notices(self.loras(source, &*base, options)?.report()))
    }

    /// The model as its files are, opened once for several questions about it.
    fn base(&mut self, source: &ModelSource) -> Result<Arc<dyn Model>, Failure> {
        if let Some((opened, model)) = &self.base
            && opened == source
        {
            return Ok(Arc::clone(model));
        }
        let model = families::open_source(source)?;
        self.base = Some((source.clone(), Arc::clone(&model)));
        self.adapted = None;
        Ok(model)
    }

    fn loras(
        &mut self,
        source: &ModelSource,
        base: &dyn Model,
        options: &GraphOptions,
    ) -> Result<&Loras, Failure> {
        let known =
            |adapted: &AdaptedModel| adapted.model == *source && adapted.files == options.loras;
        if !self.adapted.as_ref().is_some_and(known) {
            let sources = options.loras.iter();
            let sources = sources
                .map(|lora| LoraSource { path: lora.path.clone().into(), weight: lora.weight });
            let loras = base.open_loras(&sources.collect::<Vec<_>>())?;
            let (model, files) = (source.clone(), options.loras.clone());
            self.adapted = Some(AdaptedModel { model, files, loras });
        }
        Ok(&self.adapted.as_ref().expect("it was just opened").loras)
    }
}

/// Whether a component's weights stay as they are: its products are added while it runs, or it does
/// not run.
fn is_runtime(model: &dyn Model, job: &JobShape, options: &GraphOptions, component: &str) -> bool {
    let is_left_out = job.conditioned && model.text_encoders().contains(&component);
    is_left_out || options.lora_runtime.iter().any(|name| name == component)
}

/// A sentence for each file whose keys were not all applied.
fn notices(report: &LoraReport) -> Vec<String> {
    let partial = report.files.iter().filter(|file| !file.unmatched.is_empty());
    let sentence = partial.map(|file| {
        let count = file.unmatched.len();
        let named: Vec<&str> =
            file.unmatched.iter().take(NAMED_KEYS_MAX).map(|key| key.key.as_str()).collect();
        let more = count.saturating_sub(named.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!(
            "{}: {count} of its tensors match no layer of this model and are left out: {}{more}",
            file.path.display(),
            named.join(", ")
        )
    });
    sentence.collect()
}
