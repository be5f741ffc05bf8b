//! Models that are copied to be damaged: weights that are no numbers.

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::Dtype;

/// Copies a directory with all that is in it; `to` may be there already.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        match entry.file_type().expect("an entry that stays").is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).expect("a file")),
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
