//! Tables and trajectories of the reference file's configurations, by our own rules.

use super::{Case, Prediction, Setting, Value};
use crate::sampling::curves::{Curve, Ends};
use crate::sampling::flow::{FlowMatchConfig, FlowTable};
use crate::sampling::path::{LatentConvention, NoiseLevel, Path};
use crate::sampling::rules::discrete::{self, DiscretePath, Variance};
use crate::sampling::rules::exponential::{Ending, Integrand, Solver, Weighing, grouped_orders};
use crate::sampling::rules::polynomial::{deis, lms};
use crate::sampling::rules::straight::{self, Churn};
use crate::sampling::rules::unipc::{Scale, UniPc};
use crate::sampling::tables::{Final, NamedTable, Spacing, Table, TableRequest, TimeRounding};
use crate::sampling::training::{TIMES, Training};
use crate::sampling::trajectory::{ModelCall, Trajectory};

/// A trajectory with the table that it was made of.
pub struct Made {
    pub table: Table,
    pub trajectory: Trajectory,
}

/// The table of a class over training's levels, or of flow matching.
fn table(setting: &Setting, training: &Training, steps: usize) -> Table {
    let spacing = match setting.text("timestep_spacing") {
        "leading" => Spacing::Leading,
        "trailing" => Spacing::Trailing,
        _ => Spacing::Linspace,
    };
    let is_solver = !matches!(
        setting.class.as_str(),
        "EulerDiscreteScheduler"
            | "EulerAncestralDiscreteScheduler"
            | "HeunDiscreteScheduler"
            | "LMSDiscreteScheduler"
            | "KDPM2DiscreteScheduler"
            | "KDPM2AncestralDiscreteScheduler"
            | "DPMSolverSDEScheduler"
    );
    let curve = setting.curve();
    let is_kdpm = setting.class.starts_with("KDPM2");
    let times = match curve {
        Some(Curve::Karras) if setting.text("beta_schedule") == "squaredcos_cap_v2" => {
            TimeRounding::Truncated
        }
        Some(Curve::Karras) if is_solver || is_kdpm => TimeRounding::Nearest,
        _ if setting.flag("use_lu_lambdas") => TimeRounding::Nearest,
        Some(Curve::Exponential | Curve::Beta) if is_solver => TimeRounding::Truncated,
        _ => TimeRounding::Fraction,
    };
    let is_deis = setting.class.starts_with("DEIS");
    let last = match setting.text("final_sigmas_type") {
        _ if is_deis => Final::Lowest,
        "sigma_min" if setting.class.starts_with("UniPC") && curve.is_some() => Final::Repeated,
        "sigma_min" => Final::Lowest,
        _ => Final::Clean,
    };
    let offset = setting.number("steps_offset").unwrap_or(0.0);
    let asked = TableRequest { spacing, offset, curve, last, times };
    match is_solver {
        false => {
            let mut table = training.euler_table(&asked, steps);
            if let (Some(lowest), Some(highest)) =
                (setting.number("sigma_min"), setting.number("sigma_max"))
            {
                table.sigmas = Ends { highest, lowest }.along(Curve::Karras, steps);
                table.sigmas.push(0.0);
            }
            if setting.text("timestep_type") == "continuous" {
                table.times = table.sigmas[..steps].iter().map(|sigma| 0.25 * sigma.ln()).collect();
            }
            table
        }
        true => {
            // Levels of which less than that is signal are left out.
            let clipped = setting.number("lambda_min_clipped").map_or(0, |least| {
                let log_ratio = |product: &f32| {
                    let product = f64::from(*product);
                    (product / (1.0 - product)).ln() / 2.0
                };
                training.products.iter().filter(|product| log_ratio(product) < least).count()
            });
            training.solver_table(&asked, steps, TIMES - clipped)
        }
    }
}

/// The levels of flow matching, as a class makes them.
fn flow_table(setting: &Setting, steps: usize, given: &serde_json::Map<String, Value>) -> Table {
    let shift = setting.number("flow_shift").or(setting.number("shift")).unwrap_or(1.0);
    let mu = given.get("mu").and_then(Value::as_f64).unwrap_or(0.5);
    // A line without a slope has the shift that the case gives.
    let config = serde_json::json!({
        "shift": shift,
        "use_dynamic_shifting": setting.flag("use_dynamic_shifting"),
        "time_shift_type": match setting.text("time_shift_type") { "" => "exponential", kind => kind },
        "base_shift": mu,
        "max_shift": mu,
        "shift_terminal": setting.number("shift_terminal"),
    });
    let mut config = FlowMatchConfig::parse(&config.to_string()).unwrap();
    let is_solver = setting.flag("use_flow_sigmas");
    let levels = match given.get("sigmas") {
        Some(Value::Array(levels)) => {
            let levels = levels.iter().map(|level| level.as_f64().unwrap() as f32);
            Some(FlowTable::Given(levels.collect()))
        }
        Some(Value::String(text)) if text.starts_with("linspace(1, 0") => {
            let stride = 1.0 / steps as f64;
            let levels = (0..steps).map(|step| (1.0 - step as f64 * stride) as f32);
            Some(FlowTable::Given(levels.collect()))
        }
        Some(Value::String(text)) if text.starts_with("linspace") => Some(FlowTable::Own),
        _ => None,
    };
    let is_unipc = setting.class.starts_with("UniPC");
    let asked = match levels {
        Some(levels) => levels,
        None if is_unipc => FlowTable::OpenEnd,
        None if is_solver => FlowTable::BelowOne,
        None => {
            config = config.over_trained_levels();
            FlowTable::Own
        }
    };
    let asked = setting.curve().map_or(asked, FlowTable::Curved);
    let made = config.table(&asked, steps, 256).unwrap();
    let mut sigmas: Vec<f64> = made.sigmas.iter().map(|sigma| f64::from(*sigma)).collect();
    let mut times: Vec<f64> = made.timesteps.iter().map(|time| f64::from(*time)).collect();
    if is_unipc {
        sigmas[0] = sigmas[0].min(1.0 - 1e-6);
        times[0] = 1000.0 * sigmas[0];
    }
    if is_solver {
        times.iter_mut().for_each(|time| *time = time.trunc());
    }
    if setting.flag("invert_sigmas") {
        sigmas.iter_mut().for_each(|sigma| *sigma = 1.0 - *sigma);
        times = sigmas[..steps].iter().map(|sigma| 1000.0 * sigma).collect();
    }
    if let Some(Value::Array(given)) = given.get("timesteps") {
        times = given.iter().map(|time| time.as_f64().unwrap()).collect();
    }
    Table { sigmas, times }
}

/// The table of a case or of a configuration with other steps, and the calls by it.
pub fn made(setting: &Setting, steps: usize, case: Option<&Case>, golden: &[f64]) -> Made {
    let none = serde_json::Map::new();
    let given = case.map_or(&none, |case| &case.set_timesteps);
    let first = case.map_or(0, |case| case.start.begin_index / setting.order);
    let prediction = setting.prediction();
    let training = setting.training();
    let class = setting.class.as_str();
    if matches!(
        class,
        "DDIMScheduler" | "PNDMScheduler" | "LCMScheduler" | "DDPMScheduler" | "TCDScheduler"
    ) {
        return discrete_made(setting, training.as_ref().unwrap(), steps, case);
    }
    let is_karras_flow = class.starts_with("UniPC") && setting.curve() == Some(Curve::Karras);
    let mut table = match (prediction, class) {
        // The levels of these cases are given.
        (_, "LTXEulerAncestralRFScheduler") => Table {
            sigmas: golden.to_vec(),
            times: golden[..steps].iter().map(|sigma| 1000.0 * sigma).collect(),
        },
        (Prediction::Flow, _) if is_karras_flow => {
            let mut table = table(setting, training.as_ref().unwrap(), steps);
            table.sigmas.iter_mut().for_each(|sigma| *sigma /= *sigma + 1.0);
            table.times = table.sigmas[..steps].iter().map(|s| (1000.0 * s).trunc()).collect();
            table
        }
        (Prediction::Flow, _) => flow_table(setting, steps, given),
        (_, "k-diffusion") => {
            let training = training.as_ref().unwrap();
            let name = match setting.text("table") {
                "karras" => NamedTable::Karras,
                "exponential" => NamedTable::Exponential,
                "sgm_uniform" => NamedTable::SgmUniform,
                _ => NamedTable::Normal,
            };
            let sigmas = training.named_sigmas(name, steps);
            let times = sigmas[..steps].iter().map(|sigma| training.time_of(*sigma)).collect();
            Table { sigmas, times }
        }
        _ => table(setting, training.as_ref().unwrap(), steps),
    };
    if let (Some(training), Prediction::Noise) = (&training, prediction) {
        custom(&mut table, training, given);
    }
    let is_exploding = case.is_some_and(|case| case.scaled_input);
    let convention = match (prediction, is_exploding) {
        (Prediction::Flow, _) => LatentConvention::Flow,
        (_, true) => LatentConvention::VarianceExploding,
        _ => LatentConvention::VariancePreserving,
    };
    let clock = |level: NoiseLevel| match &training {
        Some(training) => training.time_of_level(level),
        None => 1000.0 * level.noise,
    };
    let path = Path {
        levels: table.sigmas.iter().map(|sigma| NoiseLevel::of(convention, *sigma)).collect(),
        times: table.times.clone(),
        clock: &clock,
        prediction,
        first,
    };
    let calls = calls(setting, &path, case);
    Made { table, trajectory: Trajectory { calls } }
}

/// Times or levels that a case gives.
fn custom(table: &mut Table, training: &Training, given: &serde_json::Map<String, Value>) {
    let list = |key: &str| -> Option<Vec<f64>> {
        let list = given.get(key)?.as_array()?;
        Some(list.iter().map(|value| value.as_f64().unwrap()).collect())
    };
    if let Some(times) = list("timesteps") {
        table.sigmas = times.iter().map(|time| training.sigma_at(*time)).collect();
        table.sigmas.push(0.0);
        table.times = times;
    }
    if let Some(sigmas) = list("sigmas") {
        table.times =
            sigmas[..sigmas.len() - 1].iter().map(|sigma| training.time_of(*sigma)).collect();
        table.sigmas = sigmas;
    }
}

fn calls(setting: &Setting, path: &Path<'_>, case: Option<&Case>) -> Vec<ModelCall> {
    let argument = |key: &str| case.and_then(|case| case.step_args.get(key)?.as_f64());
    let eta = argument("eta").or(setting.number("eta")).unwrap_or(1.0);
    match setting.class.as_str() {
        "EulerDiscreteScheduler" => straight::euler(path, churn(&argument)),
        "FlowMatchEulerDiscreteScheduler" if setting.flag("stochastic_sampling") => {
            straight::consistency(path, true)
        }
        "FlowMatchEulerDiscreteScheduler" => straight::euler(path, Churn::NONE),
        "FlowMatchLCMScheduler" => straight::consistency(path, true),
        "LTXEulerAncestralRFScheduler" => straight::euler_ancestral_flow(path, eta),
        "EulerAncestralDiscreteScheduler" => straight::euler_ancestral(path, 1.0, true),
        "HeunDiscreteScheduler" | "FlowMatchHeunDiscreteScheduler" => straight::heun(path),
        "KDPM2DiscreteScheduler" => straight::dpm2(path, None),
        "KDPM2AncestralDiscreteScheduler" => straight::dpm2(path, Some(1.0)),
        "DPMSolverSDEScheduler" => straight::two_stage_stochastic(path, 1.0),
        "LMSDiscreteScheduler" => lms(path),
        "DEISMultistepScheduler" => {
            deis(path, order(setting), Ending { few_steps: true, last: false })
        }
        "DPMSolverMultistepScheduler" => solver(setting).multistep(path),
        "DPMSolverSinglestepScheduler" => {
            let solver = solver(setting);
            let orders = grouped_orders(path.steps(), solver.order, solver.ending);
            if let Some(expected) = case.and_then(|case| case.order_list.as_ref())
                && expected.len() == orders.len()
            {
                assert_eq!(orders, *expected);
            }
            solver.singlestep(path, &orders)
        }
        "UniPCMultistepScheduler" => unipc(setting).calls(path),
        "k-diffusion" => k_diffusion(setting, path, eta),
        other => panic!("{other}"),
    }
}

fn order(setting: &Setting) -> usize {
    setting.number("solver_order").unwrap() as usize
}

fn churn(argument: &dyn Fn(&str) -> Option<f64>) -> Churn {
    let Some(amount) = argument("s_churn") else { return Churn::NONE };
    let [least, most, scale] = ["s_tmin", "s_tmax", "s_noise"].map(|key| argument(key).unwrap());
    Churn { amount, range: [least, most], scale }
}

fn solver(setting: &Setting) -> Solver {
    let algorithm = setting.text("algorithm_type");
    let is_stochastic = algorithm.starts_with("sde-");
    let is_clean = setting.text("final_sigmas_type") == "zero";
    Solver {
        order: order(setting),
        integrand: match algorithm.ends_with("++") {
            true => Integrand::Picture,
            false => Integrand::Noise,
        },
        weighing: match setting.text("solver_type") {
            "heun" => Weighing::Heun,
            _ => Weighing::Midpoint,
        },
        eta: if is_stochastic { 1.0 } else { 0.0 },
        third_half_sign: -1.0,
        ending: Ending {
            few_steps: setting.flag("lower_order_final"),
            last: is_clean || setting.flag("euler_at_final"),
        },
        draws_at_end: true,
    }
}

fn unipc(setting: &Setting) -> UniPc {
    let uncorrected = setting.arguments["disable_corrector"].as_array().unwrap();
    UniPc {
        order: order(setting),
        integrand: match setting.flag("predict_x0") {
            true => Integrand::Picture,
            false => Integrand::Noise,
        },
        scale: if setting.text("solver_type") == "bh1" { Scale::Bh1 } else { Scale::Bh2 },
        lower_at_end: setting.flag("lower_order_final"),
        uncorrected: uncorrected.iter().map(|step| step.as_u64().unwrap() as usize).collect(),
    }
}

fn k_diffusion(setting: &Setting, path: &Path<'_>, eta: f64) -> Vec<ModelCall> {
    let no_ending = Ending::default();
    match setting.text("rule") {
        "euler" => straight::euler(path, Churn::NONE),
        "euler_a" => straight::euler_ancestral(path, eta, false),
        "2s_a" => straight::two_stage_ancestral(path, eta),
        "2m" => Solver { ending: no_ending, ..Solver::plus_plus(2) }.multistep(path),
        "2m_sde" => Solver { eta, ending: no_ending, ..Solver::stochastic(2) }.multistep(path),
        "3m_sde" => {
            let weighing = Weighing::Heun;
            Solver { eta, weighing, ending: no_ending, ..Solver::stochastic(3) }.multistep(path)
        }
        "lcm" => straight::consistency(path, false),
        other => panic!("{other}"),
    }
}

/// What is over training's integer times.
fn discrete_made(
    setting: &Setting,
    training: &Training,
    steps: usize,
    case: Option<&Case>,
) -> Made {
    let spacing = match setting.text("timestep_spacing") {
        "linspace" => Spacing::Linspace,
        "trailing" => Spacing::Trailing,
        _ => Spacing::Leading,
    };
    let offset = setting.number("steps_offset").unwrap_or(0.0);
    let class = setting.class.as_str();
    let given = |key: &str| case.and_then(|case| case.set_timesteps.get(key)?.as_f64());
    let mut times: Vec<i64> = match class {
        "LCMScheduler" | "TCDScheduler" => discrete::consistency_times(
            steps,
            given("original_inference_steps").unwrap_or(50.0) as usize,
            given("strength").unwrap_or(1.0),
        ),
        _ => spacing.times(steps, offset, true).iter().map(|time| *time as i64).collect(),
    };
    let stride = (TIMES / steps) as i64;
    if class == "PNDMScheduler" {
        times = match setting.flag("skip_prk_steps") {
            true => discrete::plms_times(&times),
            false => discrete::pndm_times(&times, stride),
        };
    }
    let path = DiscretePath {
        products: &training.products,
        last_product: match setting.flag("set_alpha_to_one") {
            true => 1.0,
            false => f64::from(training.products[0]),
        },
        times: times.clone(),
        stride,
        prediction: setting.prediction(),
        clamps: setting.flag("clip_sample"),
        first: case.map_or(0, |case| case.start.begin_index),
    };
    let eta = case.and_then(|case| case.step_args.get("eta")?.as_f64());
    let calls = match class {
        "DDIMScheduler" => discrete::ddim(&path, eta.unwrap_or(0.0)),
        "DDPMScheduler" => discrete::ddpm(
            &path,
            match setting.text("variance_type") {
                "fixed_large" => Variance::Large,
                _ => Variance::Small,
            },
        ),
        "LCMScheduler" => discrete::lcm(&path),
        "TCDScheduler" => discrete::tcd(&path, eta.unwrap_or(0.3)),
        _ if setting.flag("skip_prk_steps") => discrete::plms(&path),
        _ => discrete::pndm(&path),
    };
    let times = times.iter().map(|time| *time as f64).collect();
    Made { table: Table { sigmas: Vec::new(), times }, trajectory: Trajectory { calls } }
}
