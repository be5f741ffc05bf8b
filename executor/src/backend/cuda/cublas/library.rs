//! cuBLASLt's library: found at run time, every function that is used looked up at once.
//!
//! As the driver's, its functions take and give raw numbers, since a newer one may answer with what
//! this program does not know. What is absent, lacks a function or is of another version is passed
//! over with a reason; nothing here panics.

use std::ffi::{c_int, c_uint, c_void};
use std::path::Path;
use std::sync::OnceLock;

use cudarc::cublaslt::sys::{
    cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t, cublasLtMatmulPreference_t,
    cublasLtMatrixLayout_t,
};
use cudarc::driver::sys::CUstream;
use libloading::Library as Loaded;

use super::search::{PATH_VARIABLE, Search};

/// Versions that have the functions and numbers of this program, as `cublasLtGetVersion` counts
/// (10000 × major + 100 × minor + patch): of CUDA 12 and 13.
const VERSIONS: std::ops::Range<usize> = 120_000..140_000;

/// What `cublasLtMatmulAlgoGetHeuristic` proposes: `cublasLtMatmulHeuristicResult_t`, with a state
/// that may be any number.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Proposal {
    /// How to compute it.
    pub algorithm: cublasLtMatmulAlgo_t,
    /// The workspace that it needs.
    pub workspace_bytes: usize,
    /// Zero where it can compute the product.
    pub state: c_uint,
    /// Of blocks over the GPU.
    pub waves: f32,
    /// Of the library.
    pub reserved: [c_int; 4],
}

macro_rules! functions {
    ($(fn $name:ident = $symbol:literal ($($arg:ty),* $(,)?) -> $result:ty;)*) => {
        /// The functions that are used, by their names without `cublasLt`.
        #[allow(missing_docs, reason = "as cuBLAS's reference says")]
        pub struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> $result,)*
        }

        impl Functions {
            fn load(library: &Loaded) -> Result<Functions, String> {
                $(
                    // SAFETY: the type is that of the library's header, which is the same in the
                    // versions that are taken.
                    let $name = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                    let $name = *$name.map_err(|_| concat!("it has no function ", $symbol))?;
                )*
                Ok(Functions { $($name,)* })
            }
        }
    };
}

functions! {
    fn get_version = "cublasLtGetVersion"() -> usize;
    fn create = "cublasLtCreate"(*mut cublasLtHandle_t) -> c_uint;
    fn destroy = "cublasLtDestroy"(cublasLtHandle_t) -> c_uint;
    fn product_create = "cublasLtMatmulDescCreate"(*mut cublasLtMatmulDesc_t, c_uint, c_uint) -> c_uint;
    fn product_destroy = "cublasLtMatmulDescDestroy"(cublasLtMatmulDesc_t) -> c_uint;
    fn product_set = "cublasLtMatmulDescSetAttribute"(
        cublasLtMatmulDesc_t, c_uint, *const c_void, usize,
    ) -> c_uint;
    fn layout_create = "cublasLtMatrixLayoutCreate"(
        *mut cublasLtMatrixLayout_t, c_uint, u64, u64, i64,
    ) -> c_uint;
    fn layout_destroy = "cublasLtMatrixLayoutDestroy"(cublasLtMatrixLayout_t) -> c_uint;
    fn preference_create = "cublasLtMatmulPreferenceCreate"(*mut cublasLtMatmulPreference_t) -> c_uint;
    fn preference_destroy = "cublasLtMatmulPreferenceDestroy"(cublasLtMatmulPreference_t) -> c_uint;
    fn preference_set = "cublasLtMatmulPreferenceSetAttribute"(
        cublasLtMatmulPreference_t, c_uint, *const c_void, usize,
    ) -> c_uint;
    fn propose = "cublasLtMatmulAlgoGetHeuristic"(
        cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
        cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t,
        c_int, *mut Proposal, *mut c_int,
    ) -> c_uint;
    fn multiply = "cublasLtMatmul"(
        cublasLtHandle_t, cublasLtMatmulDesc_t, *const c_void,
        *const c_void, cublasLtMatrixLayout_t, *const c_void, cublasLtMatrixLayout_t, *const c_void,
        *const c_void, cublasLtMatrixLayout_t, *mut c_void, cublasLtMatrixLayout_t,
        *const cublasLtMatmulAlgo_t, *mut c_void, usize, CUstream,
    ) -> c_uint;
}

/// Loaded, with all functions that are used of it.
pub struct Library {
    pub(super) functions: Functions,
    /// As `cublasLtGetVersion` says.
    version: usize,
    /// By which name it was found.
    name: String,
    _library: Loaded,
}

/// Why there is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The user wants none.
    #[error("switched off by an empty {PATH_VARIABLE}")]
    SwitchedOff,
    /// No version that this program knows runs on the driver.
    #[error("the driver is older than CUDA 12; hint: update it to 525 or later")]
    OldDriver,
    /// None was found in the folder that the user names.
    #[error(
        "{PATH_VARIABLE}={folder} has none of {names}; hint: name the folder with the library, or nothing to have it searched for"
    )]
    NotThere {
        /// Where it was looked for.
        folder: String,
        /// What was looked for.
        names: String,
    },
    /// None could be used, each for its reason; the loader is asked even where there is no file.
    #[error(
        "{0}; hint: pip install nvidia-cublas-cu12, or name the library's folder by {PATH_VARIABLE}"
    )]
    NoneUsable(String),
}

impl Library {
    /// The library for this driver, looked for the first time.
    ///
    /// # Errors
    /// Why there is none; it stays so for this process.
    pub fn get(driver_version: i32) -> Result<&'static Library, &'static Missing> {
        static LIBRARY: OnceLock<Result<Library, Missing>> = OnceLock::new();
        let find = || {
            let variable = |name: &str| std::env::var_os(name);
            Library::find(&Search { variable: &variable, root: Path::new("/"), driver_version })
        };
        LIBRARY.get_or_init(find).as_ref()
    }

    /// The first that can be used.
    fn find(search: &Search<'_>) -> Result<Library, Missing> {
        let candidates = search.candidates().ok_or(Missing::SwitchedOff)?;
        if search.names().is_empty() {
            return Err(Missing::OldDriver);
        }
        if candidates.is_empty() {
            let folder = (search.variable)(PATH_VARIABLE).unwrap_or_default();
            let folder = folder.to_string_lossy().into_owned();
            return Err(Missing::NotThere { folder, names: search.names().join(", ") });
        }
        let mut tried = Vec::new();
        for path in candidates {
            match Library::open(&path) {
                Ok(library) => return Ok(library),
                Err(why) => tried.push(why),
            }
        }
        Err(Missing::NoneUsable(tried.join("; ")))
    }

    fn open(path: &Path) -> Result<Library, String> {
        let name = path.display().to_string();
        // SAFETY: loading a library runs its initialisers; this one is NVIDIA's, by its name.
        let library = unsafe { Loaded::new(path) };
        let library = library.map_err(|error| format!("{name}: {error}"))?;
        let functions = Functions::load(&library).map_err(|why| format!("{name}: {why}"))?;
        // SAFETY: takes nothing.
        let version = unsafe { (functions.get_version)() };
        if !VERSIONS.contains(&version) {
            return Err(format!("{name}: it is version {version}, not of CUDA 12 or 13"));
        }
        Ok(Library { functions, version, name, _library: library })
    }
}

impl std::fmt::Display for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Library { version, name, .. } = self;
        let [major, minor, patch] = [version / 10_000, version / 100 % 100, version % 100];
        let found = if name.contains('/') { "" } else { ", found by the loader" };
        write!(f, "{major}.{minor}.{patch} ({name}{found})")
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    fn find(folder: &Path, driver_version: i32) -> Missing {
        let variable = |name: &str| (name == PATH_VARIABLE).then(|| OsString::from(folder));
        let search = Search { variable: &variable, root: Path::new("/"), driver_version };
        Library::find(&search).err().expect("there is none")
    }

    #[test]
    fn why_there_is_none_is_told_with_a_hint() {
        assert_eq!(find(Path::new(""), 13_010), Missing::SwitchedOff);
        let folder = TempDir::new().expect("a temporary folder");
        assert_eq!(find(folder.path(), 11_040), Missing::OldDriver);
        let said = find(folder.path(), 12_040).to_string();
        assert!(said.contains("has none of libcublasLt.so.12; hint: "), "{said}");
        fs::write(folder.path().join("libcublasLt.so.12"), "no library").expect("room");
        let said = find(folder.path(), 12_040).to_string();
        assert!(
            said.contains("libcublasLt.so.12: ")
                && said.contains("hint: pip install nvidia-cublas-cu12, "),
            "{said}"
        );
    }
}
