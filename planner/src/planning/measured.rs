//! What the executor says of a model for a job: its profile, and the bytes of every layout that may
//! be chosen.

use std::collections::BTreeMap;
use std::sync::Arc;

use protocol::plan::VaeTile;
use protocol::profile::ComponentProfile;
use protocol::{
    BackendKind, Command, Event, GraphOptions, JobShape, Layout, ModelProfile, PieceSizes,
};
use rayon::prelude::*;

use super::loaded::{is_of, on_open_devices, wanted_beside};
use super::sizes::sizes;
use super::unusable::{broken, check_failed, unusable};
use super::{PlanError, Request};
use crate::engine::session::{Session, SessionError};
use crate::policy::Objective;
use crate::policy::pins::Pin;
use crate::policy::tile::{OVERLAP, TileRequest};
use crate::solve::{
    Allowance, KnownLists, KnownPlaces, LayoutQuery, Lists, Place, Problem, SHORT_ATTENTION_CHUNK,
    SizedLayout, Within, fits, kept_places, places_beside, wanted,
};

/// Sides of the VAE's tiles that are tried where nobody says which, in pixels: from what diffusers
/// and stable-diffusion.cpp use (512 and 256) to a quarter of the largest pictures.
const TILE_SIDES: [u32; 5] = [1024, 768, 512, 384, 256];

/// What the executor says of a model for a job, and what is pinned of it: with each of the options
/// that there is a choice of, everything that the solver needs. No budget is in it.
pub struct MeasuredModel {
    job: JobShape,
    pins: Vec<Pin>,
    unusable: Vec<Option<String>>,
    /// The lists of devices that are looked at first.
    first_lists: Lists,
    cases: Vec<Case>,
}

/// What holds with some options.
struct Case {
    options: GraphOptions,
    profile: ModelProfile,
    /// The places of each component in the lists of devices that are looked at first.
    first: Vec<Arc<[Place]>>,
    /// Those in all lists, once they are asked for.
    all: Vec<Option<Arc<[Place]>>>,
    /// Those in all lists as far as one plan may have them, while that is made.
    of_plan: Vec<Option<Arc<[Place]>>>,
    /// The bytes of layouts.
    sized: BTreeMap<Layout, SizedLayout>,
}

/// Places that were made for a case.
struct NewPlaces {
    /// By component; `None` for those that were not asked for.
    places: Vec<Option<Arc<[Place]>>>,
    /// The bytes of layouts.
    sized: BTreeMap<Layout, SizedLayout>,
}

impl Case {
    /// A component's places in the lists that are looked at first, or in all; these are there.
    fn places(&self, component: usize, lists: Lists) -> &Arc<[Place]> {
        match lists {
            Lists::First => &self.first[component],
            Lists::All => {
                let places = self.all[component].as_ref().or(self.of_plan[component].as_ref());
                places.expect("they were asked for")
            }
        }
    }
}

impl MeasuredModel {
    /// Asks for the model's profile with each of the options, and for the bytes of the layouts that
    /// are looked at first. Adds to `runtime` which components' LoRA products are added while they
    /// run.
    pub fn ask(
        session: &mut Session,
        request: &Request,
        job: &JobShape,
        runtime: &mut Vec<String>,
    ) -> Result<MeasuredModel, PlanError> {
        let mut options = GraphOptions { lora_runtime: runtime.clone(), ..request.options.clone() };
        let tiles = tiles(request, job);
        let in_tiles = |attention_chunk| {
            let sizes = |vae_tile: &_| PieceSizes { vae_tile: *vae_tile, attention_chunk };
            tiles.iter().map(sizes).collect::<Vec<_>>()
        };
        let mut pieces = in_tiles(options.attention_chunk);
        let short = in_tiles(SHORT_ATTENTION_CHUNK);
        pieces.push(short[0]);
        let mut profiles = measure(session, request, job, &options, &pieces)?;
        let components = &profiles[0].components;
        let broken = broken(session, request);
        let inventory = &request.inventory;
        let pins = match job.conditioned {
            // What is said of text encoders has no effect on a job that brings their results.
            true => request.pins.of_components(components),
            false => request.pins.clone(),
        };
        let pins = pins.resolve(components, inventory, &broken)?;
        check_failed(request, &profiles[0], &pins)?;
        let fixed = components.iter().zip(&pins);
        let fixed =
            fixed.filter(|(c, pin)| pin.forbids_changes() || !can_change(c)).map(|(c, _)| &c.name);
        if add_runtime(&mut options, fixed) {
            profiles = measure(session, request, job, &options, &pieces)?;
        }
        runtime.clone_from(&options.lora_runtime);
        // Short chunks are a choice where any component takes less with them.
        if !takes_less(request, &profiles[tiles.len()], &profiles[0]) {
            pieces.pop();
            profiles.pop();
        } else if tiles.len() > 1 {
            pieces.extend(&short[1..]);
            profiles.extend(measure(session, request, job, &options, &short[1..])?);
        }
        let unusable = unusable(request, broken);
        let mut measured = MeasuredModel {
            job: job.clone(),
            pins,
            unusable,
            first_lists: first_lists(request),
            cases: Vec::new(),
        };
        for (sizes, profile) in pieces.into_iter().zip(profiles) {
            measured.add(session, request, options.in_pieces(sizes), profile)?;
        }
        Ok(measured)
    }

    /// For each component the lists of devices that are looked at first:
    /// [`MeasuredModel::problems`] has these without more questions.
    pub fn first_lists(&self) -> Vec<Lists> {
        vec![self.first_lists; self.pins.len()]
    }

    /// For each component all lists of devices.
    pub fn all_lists(&self) -> Vec<Lists> {
        vec![Lists::All; self.pins.len()]
    }

    /// Asks for the bytes of the layouts over all lists that were not asked for yet.
    pub fn complete(&mut self, session: &mut Session, request: &Request) -> Result<(), PlanError> {
        self.forget_plan();
        let of = vec![Some(Within::Memory); self.pins.len()];
        self.add_all(session, request, &of, |case| &mut case.all)
    }

    /// The same of the components that have an allowance, and of their places only those that a
    /// plan with the request's budgets may have that is within it. The next plan has others.
    pub fn complete_plan(
        &mut self,
        session: &mut Session,
        request: &Request,
        allowances: &[Option<Allowance>],
    ) -> Result<(), PlanError> {
        let of = allowances.iter().map(|allowance| allowance.as_ref().map(Within::Plan));
        let of: Vec<Option<Within<'_>>> = of.collect();
        self.add_all(session, request, &of, |case| &mut case.of_plan)
    }

    /// Forgets what only one plan may have.
    pub fn forget_plan(&mut self) {
        for case in &mut self.cases {
            case.of_plan.fill(None);
        }
    }

    /// Adds places in all lists, of these components and with these rings, to each case that has
    /// none of the component yet.
    fn add_all(
        &mut self,
        session: &mut Session,
        request: &Request,
        of: &[Option<Within<'_>>],
        to: impl Fn(&mut Case) -> &mut Vec<Option<Arc<[Place]>>>,
    ) -> Result<(), PlanError> {
        for at in 0..self.cases.len() {
            let case = &self.cases[at];
            let lacks = case.all.iter().zip(of);
            let lacks = lacks.map(|(all, within)| within.filter(|_| all.is_none()));
            let lacks: Vec<Option<Within<'_>>> = lacks.collect();
            let NewPlaces { places, sized } =
                self.places(session, request, case, &self.cases[..at], Lists::All, &lacks)?;
            let case = &mut self.cases[at];
            case.sized.extend(sized);
            for (all, places) in to(case).iter_mut().zip(places) {
                *all = places.or(all.take());
            }
        }
        Ok(())
    }

    /// Whether any plan fits.
    pub fn fits(&mut self, session: &mut Session, request: &Request) -> Result<bool, PlanError> {
        if fits(&self.problems(request, &self.first_lists())) {
            return Ok(true);
        }
        self.complete(session, request)?;
        Ok(fits(&self.problems(request, &self.all_lists())))
    }

    /// Adds a case, with the places that are looked at first.
    fn add(
        &mut self,
        session: &mut Session,
        request: &Request,
        options: GraphOptions,
        profile: ModelProfile,
    ) -> Result<(), PlanError> {
        let all = vec![None; profile.components.len()];
        let (first, of_plan, sized) = (Vec::new(), all.clone(), BTreeMap::new());
        let mut case = Case { options, profile, first, all, of_plan, sized };
        let each = vec![Some(Within::Memory); case.profile.components.len()];
        let NewPlaces { places, sized } =
            self.places(session, request, &case, &self.cases, self.first_lists, &each)?;
        case.sized = sized;
        case.first = places.into_iter().flatten().collect();
        if self.first_lists == Lists::All {
            case.all = case.first.iter().cloned().map(Some).collect();
        }
        self.cases.push(case);
        Ok(())
    }

    /// The places of some of a case's components in some lists of devices, with these rings. What
    /// is the same with other options, of the cases before it, is taken from there.
    fn places(
        &self,
        session: &mut Session,
        request: &Request,
        case: &Case,
        before: &[Case],
        lists: Lists,
        of: &[Option<Within<'_>>],
    ) -> Result<NewPlaces, PlanError> {
        let problem = self.problem(request, case, Vec::new());
        let components = &case.profile.components;
        let same = |index: usize| {
            let same = before.iter().find(|other| {
                other.options.attention_chunk == case.options.attention_chunk
                    && other.profile.components[index] == components[index]
            })?;
            Some(Arc::clone(same.places(index, lists)))
        };
        let same = (0..components.len()).map(|index| of[index].and_then(|_| same(index)));
        let same: Vec<Option<Arc<[Place]>>> = same.collect();
        let new = |index: usize| of[index].filter(|_| same[index].is_none());
        let of_new = (0..components.len()).map(|index| new(index).map(|_| lists));
        let of_new: Vec<Option<Lists>> = of_new.collect();
        let wanted = match &request.keeps {
            None => wanted(&problem, &of_new),
            Some(loaded) => wanted_beside(&problem, &of_new, loaded),
        };
        let alike = (0..components.len())
            .map(|index| new(index).and_then(|_| alike_on_gpus(before, index, &components[index])));
        let alike: Vec<Option<&Case>> = alike.collect();
        let known = |wanted: &LayoutQuery| {
            let own = case.sized.get(&wanted.layout);
            own.or_else(|| sized_in(alike[wanted.component]?, wanted))
        };
        let of = (&case.options, &case.profile);
        let bytes = sizes(session, request, &self.job, of, &wanted, known)?;
        let own = |(index, within): (usize, Within<'_>)| {
            let first = case
                .first
                .get(index)
                .map(|places| KnownPlaces { places, in_lists: KnownLists::First });
            let alike = alike[index].map(|case| KnownPlaces {
                places: case.places(index, lists),
                in_lists: KnownLists::OfGpus,
            });
            let known: Vec<KnownPlaces<'_>> = first.into_iter().chain(alike).collect();
            let chosen = || places_beside(&problem, index, (&wanted, &bytes), &known, within);
            match &request.keeps {
                Some(loaded) if is_of(loaded, &problem, index) => {
                    let at = wanted.iter().position(|wanted| wanted.component == index);
                    at.map_or_else(
                        || Vec::new().into(),
                        |at| kept_places(&problem, &wanted[at], &bytes[at], loaded),
                    )
                }
                Some(loaded) => on_open_devices(&problem, loaded, &chosen()),
                None => chosen(),
            }
        };
        let each = (0..components.len()).into_par_iter().with_max_len(1);
        let places = each.map(|index| match new(index) {
            Some(within) => Some(own((index, within))),
            None => same[index].clone(),
        });
        let places = places.collect();
        let sized = wanted.into_iter().map(|wanted| wanted.layout).zip(bytes).collect();
        Ok(NewPlaces { places, sized })
    }

    /// The layouts of a case's components over these lists of devices, as far as their bytes were
    /// asked for, and these bytes.
    pub fn asked(
        &self,
        case: usize,
        problem: &Problem<'_>,
        lists: &[Lists],
    ) -> (Vec<LayoutQuery>, Vec<SizedLayout>) {
        let case = &self.cases[case];
        let of: Vec<Option<Lists>> = lists.iter().copied().map(Some).collect();
        let asked_in = |(index, own): (usize, &ComponentProfile)| {
            let like = self.cases.iter().filter(|other| {
                other.options.attention_chunk == case.options.attention_chunk
                    && other.profile.components[index] == *own
            });
            (like.collect::<Vec<_>>(), alike_on_gpus(&self.cases, index, own))
        };
        let asked_in = case.profile.components.iter().enumerate().map(asked_in);
        let asked_in: Vec<(Vec<&Case>, Option<&Case>)> = asked_in.collect();
        let bytes = |wanted: &LayoutQuery| {
            let (like, alike) = &asked_in[wanted.component];
            let mut all = like.iter().filter_map(|other| other.sized.get(&wanted.layout));
            all.next().or_else(|| sized_in((*alike)?, wanted)).cloned()
        };
        let wanted = wanted(problem, &of).into_iter();
        wanted.filter_map(|wanted| bytes(&wanted).map(|bytes| (wanted, bytes))).unzip()
    }

    /// The bytes of any layouts of a case's components.
    pub fn size(
        &self,
        session: &mut Session,
        request: &Request,
        case: usize,
        wanted: &[LayoutQuery],
    ) -> Result<Vec<SizedLayout>, PlanError> {
        let case = &self.cases[case];
        let known = |wanted: &LayoutQuery| case.sized.get(&wanted.layout);
        sizes(session, request, &self.job, (&case.options, &case.profile), wanted, known)
    }

    fn problem<'a>(
        &'a self,
        request: &'a Request,
        case: &'a Case,
        places: Vec<Arc<[Place]>>,
    ) -> Problem<'a> {
        Problem {
            inventory: &request.inventory,
            budgets: request.budgets.clone(),
            unusable: self.unusable.clone(),
            model: &request.model,
            profile: &case.profile,
            job: &self.job,
            objective: request.objective,
            options: &case.options,
            mapping_policy: request.mapping_policy,
            pins: self.pins.clone(),
            prefetch: request.prefetch,
            places,
        }
    }

    /// The problems that the solver is given, with the request's budgets and each component's
    /// places in these lists, which [`MeasuredModel::complete`] asked for.
    pub fn problems<'a>(&'a self, request: &'a Request, lists: &[Lists]) -> Vec<Problem<'a>> {
        let of = |case: &'a Case| {
            let places = lists.iter().enumerate();
            let places = places.map(|(index, lists)| Arc::clone(case.places(index, *lists)));
            self.problem(request, case, places.collect())
        };
        self.cases.iter().map(of).collect()
    }
}

/// The lists of devices that are looked at first. With the least memory as the objective, or with
/// changed weights, all are needed; where weights are kept there are no others.
fn first_lists(request: &Request) -> Lists {
    let all = request.objective == Objective::Memory
        || !request.options.loras.is_empty()
        || request.keeps.is_some();
    if all { Lists::All } else { Lists::First }
}

/// The bytes of a layout over GPUs alone, in a case that is alike on these.
fn sized_in<'c>(alike: &'c Case, wanted: &LayoutQuery) -> Option<&'c SizedLayout> {
    alike.sized.get(&wanted.layout).filter(|_| wanted.layout.is_on_gpus())
}

/// A case in which a component is the same as far as GPUs have to do with it: its places on these
/// are the same. How many queries the host attends with at a time is nothing to them.
fn alike_on_gpus<'c>(
    cases: &'c [Case],
    index: usize,
    component: &ComponentProfile,
) -> Option<&'c Case> {
    let gpus = on_gpus(component);
    cases.iter().find(|case| on_gpus(&case.profile.components[index]) == gpus)
}

/// The tiles that there is a choice of, the most wanted first: none changes the picture.
fn tiles(request: &Request, job: &JobShape) -> Vec<Option<VaeTile>> {
    match request.tile {
        TileRequest::Off => vec![None],
        TileRequest::Of(tile) => vec![Some(tile)],
        TileRequest::Chosen => {
            let below = |side: &u32| {
                *side < job.width.max(job.height) && *side >= request.side_multiple_pixels
            };
            let tile = |side| VaeTile { width: side, height: side, overlap: OVERLAP };
            let tiles = TILE_SIDES.into_iter().filter(below).map(|side| Some(tile(side)));
            std::iter::once(None).chain(tiles).collect()
        }
    }
}

/// Whether a component's weights are of types that changed ones can be stored in.
fn can_change(component: &ComponentProfile) -> bool {
    let mut stored = component.segments.iter().flat_map(|segment| &segment.storage);
    stored.all(|entry| entry.storage.can_change())
}

/// Adds components whose LoRA products are added while they run; whether any is new. Without a LoRA
/// there is nothing to add.
pub fn add_runtime<'n>(
    options: &mut GraphOptions,
    names: impl Iterator<Item = &'n String>,
) -> bool {
    if options.loras.is_empty() {
        return false;
    }
    let runtime = &mut options.lora_runtime;
    let before = runtime.len();
    for name in names {
        if !runtime.contains(name) {
            runtime.push(name.clone());
        }
    }
    runtime.len() > before
}

/// The model's profile in pieces of each of these sizes.
fn measure(
    session: &mut Session,
    request: &Request,
    job: &JobShape,
    options: &GraphOptions,
    pieces: &[PieceSizes],
) -> Result<Vec<ModelProfile>, SessionError> {
    let command = Command::Measure {
        model: request.model.clone(),
        job: job.clone(),
        options: options.clone(),
        pieces: pieces.to_vec(),
        threads: request.inventory.host.cores as u32,
    };
    session.ask("Measure", command, |event| match event {
        Event::Measured(profiles) if profiles.len() == pieces.len() => Ok(profiles),
        other => Err(other),
    })
}

/// Whether any component takes less than in another profile on any kind of backend that there is.
fn takes_less(request: &Request, profile: &ModelProfile, other: &ModelProfile) -> bool {
    let devices = request.inventory.devices.iter().map(|device| device.kind.backend());
    let mut kinds = devices.chain([BackendKind::Host]);
    kinds.any(|kind| {
        let mut both = profile.components.iter().zip(&other.components);
        both.any(|(a, b)| a.compute_bytes(kind) < b.compute_bytes(kind))
    })
}

/// A component's profile without what is of other processors than GPUs.
fn on_gpus(component: &ComponentProfile) -> ComponentProfile {
    let mut profile = component.clone();
    profile.compute.retain(|entry| entry.backend == BackendKind::Cuda);
    for segment in &mut profile.segments {
        segment.workspace.retain(|entry| entry.backend == BackendKind::Cuda);
    }
    profile
}
