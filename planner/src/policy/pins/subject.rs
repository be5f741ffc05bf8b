//! Subjects: which components of a model a name on the command line means.
//!
//! A name of the model's own means that component. Beside these there are aliases by what a
//! component does, so that one command line fits every family.

use protocol::Phase;
use protocol::profile::ComponentProfile;

use super::ALL;
use crate::policy::aliases::{CONDITIONERS, DENOISERS, VAE};

/// How narrowly a subject means a component: what is narrower wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SubjectScope {
    /// Every component.
    All,
    /// Those of one kind.
    Kind,
    /// This one.
    Name,
}

/// How the subject means the component at `index`; `None` where it does not.
pub(super) fn reach(
    subject: &str,
    components: &[ComponentProfile],
    index: usize,
) -> Option<SubjectScope> {
    let component = &components[index];
    let is_name = components.iter().any(|c| c.name.to_lowercase() == subject);
    match subject {
        ALL => Some(SubjectScope::All),
        VAE => component.name.to_lowercase().starts_with(VAE).then_some(SubjectScope::Kind),
        _ if is_name => (component.name.to_lowercase() == subject).then_some(SubjectScope::Name),
        _ if CONDITIONERS.contains(&subject) => {
            (component.phase == Phase::Condition).then_some(SubjectScope::Kind)
        }
        _ if DENOISERS.contains(&subject) => {
            (component.phase == Phase::Denoise).then_some(SubjectScope::Kind)
        }
        _ => None,
    }
}

/// What can be named, for a hint.
pub(super) fn known(components: &[ComponentProfile]) -> String {
    let mut names: Vec<&str> = components.iter().map(|c| c.name.as_str()).collect();
    let aliases = [ALL].into_iter().chain(CONDITIONERS).chain(DENOISERS).chain([VAE]);
    let means_one =
        |alias: &&str| (0..components.len()).any(|i| reach(alias, components, i).is_some());
    names.extend(aliases.filter(means_one));
    let mut seen = Vec::new();
    names.retain(|name| {
        !seen.contains(name) && {
            seen.push(*name);
            true
        }
    });
    names.join(", ")
}
