//! Builds the simulated libraries with g++: an object for each source and for each file of kernels,
//! on all processors.
//!
//! Invariants: several test programs may ask at once, since one builds while the others wait; an
//! object is compiled anew only when what it may include has changed; a build that is cut off
//! leaves nothing half-written under a final name.

#[path = "kernels.rs"]
mod kernels;

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::Hasher;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// What is common to all sources. Operations are not contracted, so that every processor gives the
/// same bits (see `tests/simulator/simulator.h`).
const FLAGS: [&str; 7] =
    ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra"];

/// For kernels: accesses that a device would refuse are caught, as `fibres.cpp` says; unused parts
/// of what they include, and CUDA's pragmas, are no fault.
const KERNEL_FLAGS: [&str; 6] = [
    "-fsanitize=alignment,bounds",
    "-fno-sanitize-recover=all",
    "-fno-exceptions",
    "-fno-rtti",
    "-Wno-unknown-pragmas",
    "-Wno-unused",
];

/// The sources of `libcuda.so.1` beside the kernels; `libcublasLt.so.12` is another name of it.
const DRIVER: [&str; 12] = [
    "driver",
    "cublas",
    "memory",
    "modules",
    "queues",
    "state",
    "configuration",
    "shared_use",
    "launch",
    "fibres",
    "collectives",
    "wrong",
];

/// The sources of `libnvidia-ml.so.1`.
const NVML: [&str; 3] = ["nvml", "configuration", "shared_use"];

/// The sources of the self test.
const SELFTEST: [&str; 1] = ["selftest"];

/// A source with all that decides its object.
struct Unit {
    name: String,
    /// The file.
    path: PathBuf,
    flags: Vec<&'static str>,
    /// Of the file and of all that it may include.
    contents: u64,
    is_kernels: bool,
}

/// The folder of the finished libraries and of the self test, which are built where they are not.
///
/// # Panics
///
/// With the compiler's words where a source does not compile, or where `g++` is missing.
pub fn build() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest.join("..").canonicalize().expect("the crate is in it");
    let sources = root.join("tests/simulator");
    let include = [sources.clone(), root.join("executor/kernels")];
    let target = option_env!("CARGO_TARGET_TMPDIR")
        .map_or_else(|| root.join("target/tmp"), PathBuf::from)
        .join("simulator");
    let objects = target.join("objects");
    fs::create_dir_all(&objects).expect("a folder for what is built");
    // One builds; who comes later finds it done.
    let turn = File::create(target.join("turn")).expect("a file to lock");
    turn.lock().expect("the lock of the simulator's folder");

    let units = units(&include);
    let made = objects_of(&units, &include, &objects);
    let exports = sources.join("exports.map");
    let names: Vec<String> = made.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let key = hash(names.iter().map(String::as_str).chain([read(&exports).as_str()]));
    let folder = target.join(format!("{key:016x}"));
    if folder.is_dir() {
        return folder;
    }
    let unfinished = target.join("unfinished");
    let _ = fs::remove_dir_all(&unfinished);
    fs::create_dir_all(&unfinished).expect("a folder for the libraries");
    let chosen = |names: &[&str], kernels: bool| -> Vec<PathBuf> {
        let wanted = |unit: &Unit| match unit.is_kernels {
            true => kernels,
            false => names.contains(&unit.name.as_str()),
        };
        units.iter().zip(&made).filter(|(unit, _)| wanted(unit)).map(|(_, o)| o.clone()).collect()
    };
    link_library("libcuda.so.1", chosen(&DRIVER, true), &exports, &unfinished);
    // In a folder of its own, since programs find it without being told where only the others are.
    let cublas = unfinished.join("cublas");
    fs::create_dir(&cublas).expect("a folder for cuBLASLt");
    symlink("../libcuda.so.1", cublas.join("libcublasLt.so.12")).expect("a link");
    link_library("libnvidia-ml.so.1", chosen(&NVML, false), &exports, &unfinished);
    link_selftest(chosen(&SELFTEST, false), &unfinished);
    fs::rename(&unfinished, &folder).expect("the finished folder gets its name");
    folder
}

/// The sources in both folders.
fn units(include: &[PathBuf; 2]) -> Vec<Unit> {
    let [sources, own] = include;
    let headers = hash_of(&files(sources, &["h"]));
    let shared = hash_of(&files(own, &["cuh"])) ^ headers.rotate_left(1);
    let unit = |path: PathBuf, flags: Vec<&'static str>, included: u64, is_kernels: bool| Unit {
        name: path.file_stem().expect("a file's name").to_string_lossy().into_owned(),
        contents: hash([read(&path).as_str()]) ^ included,
        path,
        flags,
        is_kernels,
    };
    let plain = files(sources, &["cpp"]).into_iter();
    let plain = plain.map(|path| unit(path, machine_flags().to_vec(), headers, false));
    let kernels = [files(own, &["cu"]), files(sources, &["cu"])].concat().into_iter();
    let flags = [&KERNEL_FLAGS[..], machine_flags()].concat();
    plain.chain(kernels.map(|path| unit(path, flags.clone(), shared, true))).collect()
}

/// The files directly in a folder with these extensions, by name.
fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| extensions.iter().any(|known| e == *known)))
        .collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn hash<'a>(texts: impl IntoIterator<Item = &'a str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for text in texts {
        hasher.write(text.as_bytes());
        // No text has this byte, since all are UTF-8.
        hasher.write_u8(0xff);
    }
    hasher.finish()
}

fn hash_of(paths: &[PathBuf]) -> u64 {
    let texts: Vec<String> = paths.iter().map(|path| read(path)).collect();
    hash(texts.iter().map(String::as_str))
}

/// Instructions of this machine that make kernels faster and change no bit.
fn machine_flags() -> &'static [&'static str] {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
    {
        return &["-march=x86-64-v3"];
    }
    &[]
}

/// Runs g++ and gives its standard output.
fn run_compiler(arguments: &[OsString], what: &str) -> Vec<u8> {
    let output = match Command::new("g++").args(arguments).output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            panic!("g++ is missing: the tests of the CUDA backend build a simulated driver with it")
        }
        Err(error) => panic!("g++: {error}"),
    };
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what} does not compile:\n{messages}");
    output.stdout
}

fn link_library(name: &str, objects: Vec<PathBuf>, exports: &Path, folder: &Path) {
    let soname = format!("-Wl,-soname,{name},--version-script={}", exports.display());
    let mut arguments: Vec<OsString> = vec!["-shared".into(), soname.into()];
    // The streams' threads stay, so the library does.
    arguments.push("-Wl,-z,defs,-z,nodelete,-Bsymbolic".into());
    arguments.extend(objects.into_iter().map(OsString::from));
    arguments.extend(["-pthread".into(), "-o".into(), folder.join(name).into()]);
    run_compiler(&arguments, name);
}

fn link_selftest(objects: Vec<PathBuf>, folder: &Path) {
    let mut arguments: Vec<OsString> = objects.into_iter().map(OsString::from).collect();
    let libraries = ["libcuda.so.1", "libnvidia-ml.so.1"];
    arguments.extend(libraries.map(|name| OsString::from(folder.join(name))));
    arguments.extend(["-Wl,-rpath,$ORIGIN".into(), "-pthread".into()]);
    arguments.extend(["-o".into(), folder.join("selftest").into()]);
    run_compiler(&arguments, "the self test");
}

/// Compiles what is not there yet; the objects' paths, in order.
fn objects_of(units: &[Unit], include: &[PathBuf], objects: &Path) -> Vec<PathBuf> {
    let path = |unit: &Unit| {
        let flags = FLAGS.iter().chain(&unit.flags).copied();
        let key = hash(flags.chain([unit.path.to_string_lossy().as_ref()]));
        objects.join(format!("{}-{:016x}.o", unit.name, key ^ unit.contents.rotate_left(7)))
    };
    let paths: Vec<PathBuf> = units.iter().map(path).collect();
    // Kernels first, the longest sources before the others: they take longest.
    let mut missing: Vec<usize> =
        (0..units.len()).filter(|&index| !paths[index].exists()).collect();
    missing.sort_by_key(|&index| (units[index].is_kernels, read(&units[index].path).len()));
    let missing = Mutex::new(missing);
    let next = || missing.lock().expect("no thread fails while it holds it").pop();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(index) = next() {
                    compile(&units[index], include, &paths[index]);
                }
            });
        }
    });
    paths
}

fn compile(unit: &Unit, include: &[PathBuf], object: &Path) {
    let mut arguments: Vec<OsString> =
        FLAGS.iter().chain(&unit.flags).map(OsString::from).collect();
    for folder in include {
        arguments.extend(["-I".into(), folder.into()]);
    }
    let mut source = unit.path.clone();
    if unit.is_kernels {
        source = object.with_extension("cpp");
        fs::write(&source, kernels::registered(&unit.path, &arguments)).expect("a source");
    }
    let unfinished = object.with_extension("unfinished");
    arguments.extend(["-c".into(), source.into(), "-o".into(), unfinished.clone().into()]);
    run_compiler(&arguments, &unit.path.to_string_lossy());
    fs::rename(unfinished, object).expect("the object gets its name");
}
