//! Profiles in layers: the system's, the user's and the project's, under the one that `--host`
//! names.
//!
//! ```text
//! /etc/berth/host.toml < $XDG_CONFIG_HOME/berth/host.toml < ./berth.toml < --host, or BERTH_HOST
//! ```
//! In a layer everything is optional, its name too. Of `[policy]` and `[host]` each key of a higher
//! layer replaces that of the lower ones; a list of devices replaces the whole of a lower one. A
//! profile of `--host` that lists devices stands alone: on an imagined host the names of this
//! machine's devices mean others. A file that is there and cannot be used is an error, whichever
//! layer it is.

use std::path::{Path, PathBuf};

use super::layer::Layer;
use super::{Profile, ProfileDevices, ProfileError, file, read_capped};

/// The environment variable with the directory of the system's layer, in place of
/// [`SYSTEM_DIRECTORY`].
pub const BERTH_SYSTEM_DIR: &str = "BERTH_SYSTEM_DIR";

/// The directory of the system's layer.
pub const SYSTEM_DIRECTORY: &str = "/etc/berth";

/// The file of the system's layer, and of the user's.
const HOST_FILE: &str = "host.toml";

/// The file of the project's layer: in the working directory, not in those above it.
const PROJECT_FILE: &str = "berth.toml";

/// What makes a directory a model's: a `berth.toml` there is the model's defaults, no project's
/// layer.
const MODEL_FILE: &str = "model_index.json";

/// Where the layers under `--host` are looked for, lowest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayerFiles(pub Vec<PathBuf>);

/// A profile from all layers.
#[derive(Debug, Clone, PartialEq)]
pub struct Layered {
    /// What they say together.
    pub profile: Profile,
    /// The files under `--host` that took part, lowest first.
    pub files: Vec<String>,
    /// The profile of `--host`, as it was named.
    pub host: Option<String>,
    /// Whether the devices are those that a profile names: by `--host`, or by a layer's list.
    pub names_devices: bool,
}

impl LayerFiles {
    /// Those of this process, by its environment and working directory.
    pub fn of_this_process() -> LayerFiles {
        let system = std::env::var_os(BERTH_SYSTEM_DIR).map(PathBuf::from);
        let system = system.unwrap_or_else(|| SYSTEM_DIRECTORY.into());
        let mut places = vec![system.join(HOST_FILE)];
        // Without a home there is no user's layer.
        if let Ok(directories) = etcetera::choose_base_strategy() {
            let config = etcetera::BaseStrategy::config_dir(&directories);
            places.push(config.join("berth").join(HOST_FILE));
        }
        if !Path::new(MODEL_FILE).exists() {
            places.push(PROJECT_FILE.into());
        }
        LayerFiles(places)
    }
}

impl Layered {
    /// Reads the layers that are there, under the profile that `host` names ([`Profile::load`]).
    ///
    /// # Errors
    /// A file that is there cannot be read, or is no profile; or there is none that `host` names.
    pub fn load(places: &LayerFiles, host: Option<&str>) -> Result<Layered, ProfileError> {
        let named = host.map(Profile::load).transpose()?;
        let host = host.map(str::to_owned);
        if let Some(profile @ Profile { devices: ProfileDevices::Listed(_), .. }) = named {
            return Ok(Layered { profile, files: Vec::new(), host, names_devices: true });
        }
        let mut joined = Layer::default();
        let mut files = Vec::new();
        for path in &places.0 {
            if let Some(layer) = read_layer(path)? {
                joined = layer.over(joined);
                files.push(path.display().to_string());
            }
        }
        if let Some(profile) = named {
            joined = Layer::from(profile).over(joined);
        }
        let listed = matches!(joined.devices, Some(ProfileDevices::Listed(_)));
        let names_devices = host.is_some() || listed;
        Ok(Layered { profile: joined.into(), files, host, names_devices })
    }
}

/// The layer of a file; `None` where there is no such file.
fn read_layer(path: &Path) -> Result<Option<Layer>, ProfileError> {
    if !path
        .try_exists()
        .map_err(|cause| ProfileError::Read { path: path.to_owned(), cause: cause.into() })?
    {
        return Ok(None);
    }
    let text = read_capped(path)?;
    let layer = file::parse_layer(&text);
    Ok(Some(layer.map_err(|error| error.at(&text, &path.display().to_string()))?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use protocol::Bytes;
    use tempfile::TempDir;

    use super::*;
    use crate::inventory::Inventory;
    use crate::inventory::tests::host_of;
    use crate::policy::PolicyText;

    /// Three layers in a scratch directory, as far as they have a text.
    fn places(layers: [Option<&str>; 3]) -> (TempDir, LayerFiles) {
        let folder = tempfile::tempdir().expect("a scratch directory");
        let paths =
            ["system.toml", "user.toml", "project.toml"].map(|name| folder.path().join(name));
        for (path, text) in paths.iter().zip(layers) {
            if let Some(text) = text {
                fs::write(path, text).expect("scratch file");
            }
        }
        (folder, LayerFiles(paths.to_vec()))
    }

    fn load(layers: [Option<&str>; 3], host: Option<&str>) -> Layered {
        let (_folder, places) = places(layers);
        Layered::load(&places, host).expect("good layers")
    }

    const SYSTEM: &str = "[host]\nstorage_bandwidth = \"1GB/s\"\ncores = 2\n[policy]\nmax_vram = \"8\"\nforbid = \"dit=host\"\n";
    const USER: &str = "name = \"mine\"\n[host]\ncores = 3\n[policy]\nmax_vram = \"cuda0=4\"\n";
    const PROJECT: &str = "[policy]\noptimize = \"memory\"\n";

    #[test]
    fn a_higher_layer_replaces_key_by_key() {
        let all = load([Some(SYSTEM), Some(USER), Some(PROJECT)], None);
        let Profile { name, host, devices, policy, .. } = &all.profile;
        assert_eq!((name.as_str(), devices), ("mine", &ProfileDevices::Detect));
        assert_eq!((host.cores, host.storage_bytes_per_s), (Some(3), Some(1e9)));
        let said = [&policy.max_vram, &policy.forbid, &policy.optimize].map(Option::as_deref);
        assert_eq!(said, [Some("cuda0=4"), Some("dit=host"), Some("memory")]);
        assert_eq!((all.files.len(), all.names_devices), (3, false));

        let two = load([Some(SYSTEM), None, Some(PROJECT)], None);
        assert_eq!(two.profile.name, Inventory::THIS_MACHINE);
        assert_eq!(two.profile.policy.max_vram.as_deref(), Some("8"));
        assert!(two.files[0].ends_with("system.toml") && two.files[1].ends_with("project.toml"));

        let none = load([None; 3], None);
        assert_eq!(none.profile.policy, PolicyText::default());
        assert_eq!((none.files.len(), none.host), (0, None));
        let host = host_of(Bytes::gib(16), Bytes::gib(12));
        assert_eq!(none.profile.inventory_on(&host).host, host);
    }

    #[test]
    fn a_list_of_devices_replaces_the_whole_of_a_lower_one() {
        let virtual_device =
            "[[device]]\nkind = \"virtual\"\ntotal = \"1GiB\"\nlink = \"1GiB/s\"\n";
        let two = format!("{virtual_device}{virtual_device}");
        let listed = load([Some(&two), Some(virtual_device), Some(PROJECT)], None);
        let count = |layered: &Layered| match &layered.profile.devices {
            ProfileDevices::Listed(devices) => Some(devices.len()),
            ProfileDevices::Detect => None,
        };
        assert_eq!((count(&listed), listed.names_devices), (Some(1), true));
        assert_eq!(listed.profile.policy.optimize.as_deref(), Some("memory"));
        // Those that are here, in place of the list.
        let detected = load([Some(&two), None, None], Some("this-machine"));
        assert_eq!((count(&detected), detected.names_devices), (None, true));
        assert_eq!(detected.profile.name, "this-machine");
    }

    #[test]
    fn an_imagined_host_stands_alone_and_this_one_does_not() {
        let alone = load([Some(SYSTEM), Some(USER), Some(PROJECT)], Some("virtual-2x2g"));
        assert_eq!(alone.profile, Profile::load("virtual-2x2g").expect("shipped"));
        assert_eq!((alone.files.len(), alone.host.as_deref()), (0, Some("virtual-2x2g")));
        let here = load([Some(SYSTEM), Some(USER), Some(PROJECT)], Some("this-machine"));
        assert_eq!(here.profile.policy.forbid.as_deref(), Some("dit=host"));
        assert_eq!((here.files.len(), here.host.as_deref()), (3, Some("this-machine")));
        // Not even a broken layer is looked at for another machine's plan.
        let (_folder, broken) = places([Some("x"), None, None]);
        assert!(Layered::load(&broken, Some("virtual-2x2g")).is_ok());
    }

    #[test]
    fn a_broken_layer_is_an_error_that_names_it() {
        for (index, text, says) in [
            (0, "[policy]\nmax_vram = \"0\"", "system.toml:2: `max_vram`: a budget of 0"),
            (1, "colour = 1", "user.toml:1: `colour`: unknown field"),
            (2, "name = \" \"", "project.toml:1: `name`: an empty name"),
        ] {
            let mut layers = [None; 3];
            layers[index] = Some(text);
            let (_folder, places) = places(layers);
            for host in [None, Some("this-machine")] {
                let error = Layered::load(&places, host).expect_err(text).to_string();
                assert!(error.contains(says), "{error}");
            }
        }
        let (folder, places) = places([None; 3]);
        fs::create_dir(folder.path().join("user.toml")).expect("a directory in its place");
        let error = Layered::load(&places, None).expect_err("a directory").to_string();
        assert!(error.contains("user.toml: it is not a regular file"), "{error}");
    }
}
