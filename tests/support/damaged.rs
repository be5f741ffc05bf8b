//! Models that are copied to be damaged: weights that are no numbers.

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::Dtype;

/// Copies a directory.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// Writes a value over the first number of a tensor in f32.
pub fn poison(file: &Path, tensor: &str, value: f32) {
    let mut bytes = fs::read(file).unwrap();
    let at = {
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let view = file.tensor(tensor).unwrap();
        assert_eq!(view.dtype(), Dtype::F32, "{tensor}");
        view.data().as_ptr() as usize - bytes.as_ptr() as usize
    };
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    fs::write(file, bytes).unwrap();
}
