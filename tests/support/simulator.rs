//! The simulated CUDA driver, cuBLASLt and NVML in `tests/simulator`: built with g++, once for each
//! content of their sources and of the kernels, and configured for the programs under test.
//!
//! The two libraries stand in one folder under the names by which programs load them. What a
//! configuration may say is written in `tests/simulator/configuration.h`, what the log of calls
//! says in `tests/simulator/log.h`. Not here: how they are built (`simulator/build.rs`).

mod build;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// The built libraries.
pub struct Simulator {
    folder: PathBuf,
}

impl Simulator {
    /// Builds them, if that was not done.
    ///
    /// # Panics
    ///
    /// With the compiler's words where a source does not compile, or where `g++` is missing.
    pub fn built() -> &'static Simulator {
        // A failure is not tried again by every test of a program.
        static BUILT: LazyLock<Simulator> = LazyLock::new(|| Simulator { folder: build::build() });
        &BUILT
    }

    /// Where both libraries are, under the names that the driver's installer gives them.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The library of the CUDA driver.
    pub fn driver(&self) -> PathBuf {
        self.folder.join("libcuda.so.1")
    }

    /// The folder of cuBLASLt's library.
    pub fn cublas(&self) -> PathBuf {
        self.folder.join("cublas")
    }

    /// The library of NVML.
    pub fn nvml(&self) -> PathBuf {
        self.folder.join("libnvidia-ml.so.1")
    }

    /// The program with the simulator's tests of itself.
    pub fn selftest(&self) -> Command {
        Command::new(self.folder.join("selftest"))
    }
}

/// A simulated machine, for the environment of a program.
#[derive(Clone, Default)]
pub struct Machine {
    pairs: Vec<(&'static str, String)>,
    /// Where cuBLASLt is looked for; nowhere: products are formed by our kernels.
    cublas: Option<PathBuf>,
    /// Whether GPUs are tested before they are first used.
    self_test: bool,
}

impl Machine {
    /// With so many GPUs.
    pub fn new(devices: usize) -> Machine {
        Machine::default().with("devices", devices)
    }

    /// Sets a key of the configuration; lists are for the devices in order.
    pub fn with(mut self, key: &'static str, value: impl ToString) -> Machine {
        self.pairs.push((key, value.to_string()));
        self
    }

    /// With cuBLASLt.
    pub fn with_cublas(self) -> Machine {
        self.with_cublas_in(&Simulator::built().cublas())
    }

    /// cuBLASLt is looked for in this folder.
    pub fn with_cublas_in(self, folder: &Path) -> Machine {
        Machine { cublas: Some(folder.to_owned()), ..self }
    }

    /// GPUs are tested before they are first used: not where a test counts calls.
    pub fn self_tested(self) -> Machine {
        Machine { self_test: true, ..self }
    }

    /// The calls are written to this file.
    pub fn logged(self, path: &Path) -> Machine {
        self.with("log", path.display())
    }

    /// Processes of this machine count each other's memory, by a file in this folder.
    pub fn shared(self, folder: &Path) -> Machine {
        self.with("folder", folder.display())
    }

    /// The value of `BERTH_SIMULATOR`.
    pub fn value(&self) -> String {
        let pairs: Vec<String> =
            self.pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.join(";")
    }

    /// What a program must be given to run on this machine, and those that it starts.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        let simulator = Simulator::built();
        vec![
            ("BERTH_SIMULATOR", self.value().into()),
            ("BERTH_CUDA_DRIVER", simulator.driver().into()),
            ("BERTH_CUDA_PATH", self.cublas.clone().unwrap_or_default().into()),
            ("LD_LIBRARY_PATH", simulator.folder().into()),
            ("BERTH_SELF_TEST", if self.self_test { "1" } else { "0" }.into()),
        ]
    }

    /// Lets a program, and those that it starts, run on this machine.
    pub fn apply(&self, command: &mut Command) {
        command
            .envs(self.environment())
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env_remove("CUDA_DEVICE_ORDER");
    }
}
