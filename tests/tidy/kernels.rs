//! The table of what NVIDIA's assembler makes of the GPU kernels, `executor/kernels/ptxas.txt`: it
//! is of the kernels that are shipped, and those on tensor cores spill nothing.
//!
//! `scripts/ptxas_facts.py` writes it, and compares it where the assembler is.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::sources::{none, root};

/// Compute capabilities of the files that are shipped, times ten.
const SHIPPED: [&str; 2] = ["75", "80"];

/// Hexadecimal digits of a digest that the table has.
const DIGITS: usize = 16;

/// What the table says of a kernel on an architecture.
struct Row<'a> {
    line: &'a str,
    uses_tensor_cores: bool,
    /// Bytes that are stored and loaded, as `0/0`.
    spills: &'a str,
}

/// The digests of the files of a source, as the table has them.
fn digests(folder: &Path, source: &str) -> String {
    let digest = |of: &str| {
        let bytes = fs::read(folder.join(format!("{source}.{of}.ptx.z"))).expect("both are there");
        let digest = Sha256::digest(bytes);
        let text: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        text[..DIGITS].to_owned()
    };
    SHIPPED.map(digest).join("-")
}

/// A kernel's name, architecture, cores, threads, registers, stack and spills, in this order.
fn row(line: &str) -> Row<'_> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    assert!(fields.len() > 8, "{line}");
    Row { line, uses_tensor_cores: fields[2] == "tensor", spills: fields[6] }
}

#[test]
fn the_table_of_kernels_is_of_those_that_are_shipped() {
    let kernels = root().join("executor/kernels");
    let table = fs::read_to_string(kernels.join("ptxas.txt")).expect("the table");
    let files = table.lines().filter_map(|line| line.strip_prefix("file ")?.split_once(' '));
    let listed: BTreeMap<&str, &str> = files.collect();
    let mut shipped = BTreeMap::new();
    for entry in fs::read_dir(kernels.join("ptx")).expect("the kernels") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        let (source, _) = name.split_once('.').expect("an ending");
        shipped.insert(source.to_owned(), digests(&kernels.join("ptx"), source));
    }
    let shipped: BTreeMap<&str, &str> =
        shipped.iter().map(|(source, digests)| (source.as_str(), digests.as_str())).collect();
    assert_eq!(listed, shipped, "run scripts/ptxas_facts.py --write");
}

#[test]
fn kernels_on_tensor_cores_spill_nothing() {
    let table = fs::read_to_string(root().join("executor/kernels/ptxas.txt")).expect("the table");
    let is_row = |line: &&str| !line.starts_with('#') && !line.starts_with("file ");
    let rows: Vec<Row<'_>> = table.lines().filter(is_row).map(row).collect();
    assert!(rows.iter().filter(|row| row.uses_tensor_cores).count() > 100, "{}", rows.len());
    let spilling = rows.iter().filter(|row| row.uses_tensor_cores && row.spills != "0/0");
    none(
        "a kernel on tensor cores spills registers",
        spilling.map(|row| row.line.to_owned()).collect(),
    );
}
