//! Where cuBLASLt may be: the paths to try, in order. Nothing is loaded here.
//!
//! Files are looked for in folders; what the loader finds by itself (`LD_LIBRARY_PATH`, the
//! system's folders) is a name without a folder. Names are those that the driver can serve.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The environment variable that names the folder to look in, and no other. Empty: cuBLASLt is not
/// used.
pub const PATH_VARIABLE: &str = "BERTH_CUDA_PATH";

/// Folders that fit a pattern, at most: `lib` of a user's making may have any number.
const MATCHES_MAX: usize = 32;

/// The libraries of a toolkit, from its root (CUDA installation guide); `targets` are where conda
/// and cross builds have them.
const TOOLKIT: [&str; 5] =
    ["", "lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"];

/// Where NVIDIA's wheels have the library, from `site-packages`: `nvidia-cublas` (13),
/// `nvidia-cublas-cu12`.
const WHEELS: [&str; 2] = ["nvidia/cu13/lib", "nvidia/cublas/lib"];

/// What a search depends on.
pub struct Search<'a> {
    /// The environment.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The root of the file system.
    pub root: &'a Path,
    /// As `cuDriverGetVersion` says.
    pub driver_version: i32,
}

impl Search<'_> {
    /// The paths to try, the first that works wins; `None` where cuBLASLt is switched off.
    pub fn candidates(&self) -> Option<Vec<PathBuf>> {
        if let Some(named) = (self.variable)(PATH_VARIABLE) {
            let folders = TOOLKIT.map(|folder| Path::new(&named).join(folder));
            return (!named.is_empty()).then(|| self.in_folders(folders));
        }
        let mut found: Vec<PathBuf> = self.names().iter().map(PathBuf::from).collect();
        for path in self.in_folders(self.folders()) {
            if !found.contains(&path) {
                found.push(path);
            }
        }
        Some(found)
    }

    /// Names of the library that the driver can serve, the newest first: one for CUDA 13 serves
    /// what was made for 12 too; one for 11 serves neither.
    pub fn names(&self) -> &'static [&'static str] {
        const NAMES: [&str; 2] = ["libcublasLt.so.13", "libcublasLt.so.12"];
        match self.driver_version {
            13_000.. => &NAMES,
            12_000.. => &NAMES[1..],
            _ => &[],
        }
    }

    /// The folders that toolkits, conda and wheels install to.
    fn folders(&self) -> Vec<PathBuf> {
        let mut folders = Vec::new();
        let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(|name| self.folder(name));
        folders.extend(toolkits.flat_map(|home| TOOLKIT.map(|folder| home.join(folder))));
        let conda = self.folder("CONDA_PREFIX");
        folders.extend(conda.iter().map(|prefix| prefix.join("lib")));
        let environments = [self.folder("VIRTUAL_ENV"), self.python(), conda];
        let user = self.folder("HOME").map(|home| home.join(".local"));
        let system = ["usr/local", "usr"].map(|prefix| Some(self.root.join(prefix)));
        let prefixes = environments.into_iter().chain([user]).chain(system).flatten();
        let packages = prefixes.flat_map(|prefix| packages(&prefix));
        folders.extend(packages.flat_map(|packages| WHEELS.map(|wheel| packages.join(wheel))));
        let installed = matches(&self.root.join("usr/local"), "cuda");
        folders.extend(installed.into_iter().map(|toolkit| toolkit.join("lib64")));
        folders
    }

    /// The folder that a variable names.
    fn folder(&self, variable: &str) -> Option<PathBuf> {
        (self.variable)(variable).filter(|folder| !folder.is_empty()).map(PathBuf::from)
    }

    /// Where the `python3` of the path is installed: one folder above it.
    fn python(&self) -> Option<PathBuf> {
        let path = (self.variable)("PATH")?;
        let folder =
            std::env::split_paths(&path).find(|folder| folder.join("python3").is_file())?;
        folder.parent().map(Path::to_owned)
    }

    fn in_folders(&self, folders: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
        let files = folders
            .into_iter()
            .flat_map(|folder| self.names().iter().map(move |name| folder.join(name)));
        files.filter(|path| path.is_file()).collect()
    }
}

/// The folders of Python packages of an installation: one for each version, also as Debian has
/// them.
fn packages(prefix: &Path) -> Vec<PathBuf> {
    let versions =
        ["lib", "lib64"].into_iter().flat_map(|lib| matches(&prefix.join(lib), "python3"));
    versions
        .flat_map(|version| ["site-packages", "dist-packages"].map(|name| version.join(name)))
        .collect()
}

/// What a folder has whose names begin so: the shortest first, then the last by name, which is
/// mostly the newest.
fn matches(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = folder.read_dir() else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| name.starts_with(prefix)).take(MATCHES_MAX).collect();
    names.sort_by(|a, b| (a != prefix).cmp(&(b != prefix)).then(b.cmp(a)));
    names.into_iter().map(|name| folder.join(name)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    /// A file system with libraries, and an environment.
    struct Machine {
        root: TempDir,
        variables: HashMap<&'static str, OsString>,
    }

    impl Machine {
        fn new(libraries: &[&str]) -> Machine {
            let root = TempDir::new().expect("a temporary folder");
            for library in libraries {
                let path = root.path().join(library);
                fs::create_dir_all(path.parent().expect("it has a folder")).expect("room");
                fs::write(path, "").expect("room");
            }
            Machine { root, variables: HashMap::new() }
        }

        /// Sets variables to folders of this machine.
        fn with(mut self, variables: &[(&'static str, &str)]) -> Machine {
            for (name, folder) in variables {
                self.variables.insert(name, self.root.path().join(folder).into());
            }
            self
        }

        /// What is tried, as paths of this machine.
        fn candidates(&self, driver_version: i32) -> Option<Vec<String>> {
            let variable = |name: &str| self.variables.get(name).cloned();
            let search = Search { variable: &variable, root: self.root.path(), driver_version };
            let shown = |path: PathBuf| {
                let path = path.strip_prefix(self.root.path()).unwrap_or(&path).to_owned();
                path.to_str().expect("names are ASCII").to_owned()
            };
            Some(search.candidates()?.into_iter().map(shown).collect())
        }
    }

    #[test]
    fn places_are_tried_in_order() {
        let machine = Machine::new(&[
            "usr/local/cuda/lib64/libcublasLt.so.12",
            "usr/local/cuda-12.4/lib64/libcublasLt.so.12",
            "usr/local/cuda-13.0/lib64/libcublasLt.so.13",
            "opt/python/bin/python3",
            "opt/python/lib/python3.11/site-packages/nvidia/cublas/lib/libcublasLt.so.12",
            "usr/lib/python3/dist-packages/nvidia/cublas/lib/libcublasLt.so.12",
            "home/.local/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13",
            "venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13",
            "venv/lib/python3.12/site-packages/nvidia/cublas/lib/libcublasLt.so.12",
            "conda/lib/libcublasLt.so.12",
            "conda/lib/python3.12/site-packages/nvidia/cublas/lib/libcublasLt.so.12",
            "home-of-cuda/lib64/libcublasLt.so.12",
            "path-of-cuda/targets/x86_64-linux/lib/libcublasLt.so.13",
            // Of another version, and of another library.
            "path-of-cuda/lib64/libcublasLt.so.11",
            "path-of-cuda/lib64/libcublas.so.12",
        ]);
        let machine = machine.with(&[
            ("PATH", "opt/python/bin"),
            ("CUDA_HOME", "home-of-cuda"),
            ("CUDA_PATH", "path-of-cuda"),
            ("CONDA_PREFIX", "conda"),
            ("VIRTUAL_ENV", "venv"),
            ("HOME", "home"),
        ]);
        let all = [
            "libcublasLt.so.13",
            "libcublasLt.so.12",
            "home-of-cuda/lib64/libcublasLt.so.12",
            "path-of-cuda/targets/x86_64-linux/lib/libcublasLt.so.13",
            "conda/lib/libcublasLt.so.12",
            "venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13",
            "venv/lib/python3.12/site-packages/nvidia/cublas/lib/libcublasLt.so.12",
            "opt/python/lib/python3.11/site-packages/nvidia/cublas/lib/libcublasLt.so.12",
            "conda/lib/python3.12/site-packages/nvidia/cublas/lib/libcublasLt.so.12",
            "home/.local/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13",
            "usr/lib/python3/dist-packages/nvidia/cublas/lib/libcublasLt.so.12",
            "usr/local/cuda/lib64/libcublasLt.so.12",
            "usr/local/cuda-13.0/lib64/libcublasLt.so.13",
            "usr/local/cuda-12.4/lib64/libcublasLt.so.12",
        ];
        assert_eq!(machine.candidates(13_000).unwrap(), all);
        let older: Vec<&str> = all.into_iter().filter(|path| path.ends_with("12")).collect();
        assert_eq!(machine.candidates(12_090).unwrap(), older);
    }

    #[test]
    fn a_folder_named_by_hand_is_the_only_one() {
        let libraries = [
            "mine/libcublasLt.so.12",
            "mine/lib/libcublasLt.so.13",
            "cuda/lib64/libcublasLt.so.12",
        ];
        let machine = Machine::new(&libraries).with(&[("CUDA_HOME", "cuda")]);
        let machine = machine.with(&[(PATH_VARIABLE, "mine")]);
        assert_eq!(machine.candidates(13_010).unwrap(), libraries[..2]);
        assert_eq!(machine.candidates(12_000).unwrap(), libraries[..1]);
        assert!(machine.candidates(11_080).unwrap().is_empty());
        let machine = machine.with(&[(PATH_VARIABLE, "cuda/lib64")]);
        assert_eq!(machine.candidates(12_040).unwrap(), libraries[2..]);
        let machine = machine.with(&[(PATH_VARIABLE, "nowhere")]);
        assert!(machine.candidates(13_010).unwrap().is_empty());
    }

    #[test]
    fn an_empty_name_switches_it_off() {
        let mut machine = Machine::new(&["cuda/lib64/libcublasLt.so.12"]);
        machine = machine.with(&[("CUDA_HOME", "cuda")]);
        machine.variables.insert(PATH_VARIABLE, OsString::new());
        assert_eq!(machine.candidates(13_010), None);
        // Others that are empty name nothing: no folder of the working directory is searched.
        machine.variables.remove(PATH_VARIABLE);
        machine.variables.insert("CUDA_HOME", OsString::new());
        assert_eq!(machine.candidates(12_040).unwrap(), ["libcublasLt.so.12"]);
    }
}
