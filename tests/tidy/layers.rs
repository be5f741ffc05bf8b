//! The layers of each crate: a module uses those of its own row and of rows before it, none after.

use super::imports::Crate;

/// Rows of top-level modules, the lowest first.
pub type Layers = &'static [&'static [&'static str]];

/// Of the executor: files and graphs below, operations above schedules and backends, families above
/// the runtime, the process on top.
pub const EXECUTOR: Layers = &[
    &["read"],
    &["weights", "tokenizer"],
    &["graph"],
    &["schedule", "race"],
    &["backend"],
    &["ops"],
    &["sampling"],
    &["models"],
    &["components"],
    &["failure"],
    &["runtime", "measure"],
    &["pipeline", "calibrate"],
    &["families"],
    &["serve"],
];

/// Of the planner: what is and what was measured below, the solver, then the engine; what is shown
/// and what is asked beside it; the command line on top.
pub const PLANNER: Layers = &[
    &["read", "temporary"],
    &["inventory"],
    &["calibration", "budget"],
    &["policy"],
    &["profile"],
    &["solve"],
    &["tune", "fingerprint", "demo"],
    &["media"],
    &["output", "preview"],
    &["engine", "planning", "job"],
    &["render"],
    &["serve", "client"],
    &["cli"],
];

/// Of the protocol: sizes and names, then the plan, then what is said of it.
pub const PROTOCOL: Layers = &[
    &["units", "limits", "storage", "sampler", "division"],
    &["model", "phase", "plan", "faults", "times"],
    &["profile", "usage", "notice", "calibration"],
    &["message", "check"],
];

/// Uses that reach up, and modules that stand in no row.
pub fn violations(layers: Layers, files: &Crate) -> Vec<String> {
    let row = |module: &[String]| {
        let top = module.first().map(String::as_str).unwrap_or_default();
        layers.iter().position(|row| row.contains(&top))
    };
    let mut found: Vec<String> = files
        .files
        .iter()
        .filter(|(module, _)| !module.is_empty() && row(module).is_none())
        .map(|(_, path)| format!("{path}: in no layer"))
        .collect();
    for (from, to) in &files.uses {
        // The crate's root names its modules; what it exports again is known by its own module.
        if let (Some(low), Some(high)) = (row(from), row(to))
            && low < high
        {
            found.push(format!("{}: uses {}", files.files[from], to.join("::")));
        }
    }
    found
}
