//! The kernels' PTX: `executor/kernels/*.cu` as `scripts/compile_kernels.py` compiles and packs it.
//!
//! A driver compiles a module whole, which takes it seconds for a file with variants for every
//! storage type. So each kernel is given to it on its own, with what it uses of its file.

use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;

/// What a packed file may become, in bytes: a bound on memory, far above any of them.
const TEXT_BYTES_MAX: usize = 64 << 20;

/// A file of kernels: for compute capability 7.5, and for 8.0 and later.
struct PackedModule {
    #[cfg(test)]
    file: &'static str,
    turing: &'static [u8],
    /// Empty where the other is the same.
    ampere: &'static [u8],
}

macro_rules! packed {
    ($($file:literal),+ $(,)?) => {
        [$(PackedModule {
            #[cfg(test)]
            file: $file,
            turing: include_bytes!(concat!("../../../kernels/ptx/", $file, ".75.ptx.z")),
            ampere: include_bytes!(concat!("../../../kernels/ptx/", $file, ".80.ptx.z")),
        }),+]
    };
}

static FILES: &[PackedModule] = &packed![
    "attention_exact",
    "attention_half",
    "attention_pack",
    "attention_tall",
    "attention_wide",
    "conv_exact",
    "conv_half",
    "conv_pack",
    "convert",
    "decode",
    "decode_bytes",
    "decode_half",
    "elementwise",
    "group_norm",
    "linear_bytes",
    "linear_decoded",
    "linear_exact",
    "linear_few",
    "linear_finish",
    "linear_half",
    "linear_scaled",
    "modulated_norm",
    "norm",
    "pad_tokens",
    "quantise",
    "rope_halves",
    "tables",
    "token_rows",
    "tokens",
];

impl PackedModule {
    /// The file for a GPU of a compute capability: those for 8.0 and later use what 7.5 does not
    /// have.
    fn bytes(&self, capability: (u32, u32)) -> &'static [u8] {
        let ampere = capability >= (8, 0) && !self.ampere.is_empty();
        if ampere { self.ampere } else { self.turing }
    }

    /// The names of its kernels, and the packed text. The digest of the source that follows the
    /// names is the script's.
    fn parts(&self, capability: (u32, u32)) -> (&'static str, &'static [u8]) {
        let bytes = self.bytes(capability);
        let end = bytes.iter().position(|&byte| byte == b'\n').expect("packed by the script");
        let line = std::str::from_utf8(&bytes[..end]).expect("names are ASCII");
        let (names, _) = line.split_once("source=").expect("packed by the script");
        (names.trim_end(), &bytes[end + 1..])
    }

    fn text(&self, capability: (u32, u32)) -> String {
        let packed = self.parts(capability).1;
        let bytes = decompress_to_vec_zlib_with_limit(packed, TEXT_BYTES_MAX);
        String::from_utf8(bytes.expect("packed by the script")).expect("PTX is ASCII")
    }
}

/// Every file that is shipped, packed.
pub fn shipped() -> impl Iterator<Item = &'static [u8]> {
    FILES.iter().flat_map(|file| [file.turing, file.ampere])
}

/// A module with this kernel, for a GPU of a compute capability; `None` if there is no such kernel.
pub(super) fn module(capability: (u32, u32), kernel: &str) -> Option<String> {
    let has = |file: &&PackedModule| file.parts(capability).0.split(' ').any(|name| name == kernel);
    let file = FILES.iter().find(has)?;
    Some(alone(&file.text(capability), kernel))
}

/// A function or a variable of a module.
struct Item<'a> {
    text: &'a str,
    name: &'a str,
    is_kernel: bool,
    needed: bool,
}

/// The module with one of its kernels, and of the rest what that one uses.
fn alone(text: &str, kernel: &str) -> String {
    let (head, mut items) = items(text);
    for item in &mut items {
        item.needed = item.is_kernel && item.name == kernel;
    }
    // Functions and variables may need others.
    loop {
        let needed: Vec<&str> =
            items.iter().filter(|item| item.needed).map(|item| item.text).collect();
        let is_used = |item: &Item<'_>| needed.iter().any(|text| text.contains(item.name));
        let more = items.iter().filter(|item| !item.needed && !item.is_kernel && is_used(item));
        let more: Vec<&str> = more.map(|item| item.name).collect();
        if more.is_empty() {
            break;
        }
        for item in items.iter_mut().filter(|item| !item.is_kernel && more.contains(&item.name)) {
            item.needed = true;
        }
    }
    let needed = items.iter().filter(|item| item.needed).map(|item| item.text);
    std::iter::once(head).chain(needed).collect()
}

/// What a module begins with, and its functions and variables. Each begins with a line that has a
/// directive at its start, and ends with `;` or, where it has a body, with a brace at the start of
/// a line.
fn items(text: &str) -> (&str, Vec<Item<'_>>) {
    let mut items = Vec::new();
    let mut head_bytes = None;
    let mut start = None;
    let mut in_body = false;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let end = at + line.len();
        let is_head = [".version", ".target", ".address_size"].iter().any(|d| line.starts_with(d));
        if start.is_none() && line.starts_with('.') && !is_head {
            head_bytes.get_or_insert(at);
            start = Some(at);
        }
        if let Some(from) = start {
            in_body |= line == "{\n";
            let ends = if in_body { line == "}\n" } else { line.ends_with(";\n") };
            if ends {
                items.push(item(&text[from..end]));
                (start, in_body) = (None, false);
            }
        }
        at = end;
    }
    (&text[..head_bytes.unwrap_or(text.len())], items)
}

fn item(text: &str) -> Item<'_> {
    let line = text.lines().next().unwrap_or_default();
    let is_kernel = line.starts_with(".visible .entry ");
    let is_function = is_kernel || line.contains(".func");
    // A function's parameters stand on lines of their own, but a result before its name.
    let declared = if is_function {
        line.trim_end_matches(['(', ' '])
    } else {
        line.split(['[', '=', ';']).next().unwrap_or_default().trim_end()
    };
    let name = declared.rsplit([' ', ')']).next().unwrap_or_default();
    assert!(!name.is_empty(), "{line}");
    Item { text, name, is_kernel, needed: false }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    const CAPABILITIES: [(u32, u32); 2] = [(7, 5), (8, 0)];

    #[test]
    fn every_kernel_file_is_shipped() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let entries = std::fs::read_dir(folder).expect("the kernels are there");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let sources = paths.filter(|path| path.extension().is_some_and(|ending| ending == "cu"));
        let stems = sources.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned());
        let shipped = FILES.iter().map(|packed| packed.file.to_owned());
        assert_eq!(stems.collect::<BTreeSet<_>>(), shipped.collect());
    }

    #[test]
    fn files_are_for_the_architecture_that_they_are_given_to() {
        for packed in FILES {
            assert!(packed.text((7, 5)).contains(".target sm_75\n"), "{}", packed.file);
            let later = packed.text((12, 0));
            let own = !packed.ampere.is_empty();
            assert_eq!(later.contains(".target sm_80\n"), own, "{}", packed.file);
        }
    }

    #[test]
    fn no_version_of_ptx_is_newer_than_the_oldest_driver_reads() {
        // PTX ISA, "Release Notes": CUDA 11.4 reads 7.4; less is asked for.
        for packed in FILES {
            for (capability, version) in [((7, 5), "6.5"), ((8, 0), "7.1")] {
                if capability == (8, 0) && packed.ampere.is_empty() {
                    continue;
                }
                let text = packed.text(capability);
                let named: Vec<&str> =
                    text.lines().filter_map(|line| line.strip_prefix(".version ")).collect();
                assert_eq!(named, [version], "{}", packed.file);
                assert!(!text.contains("used_bytes_mask"), "{}: of PTX 8.3", packed.file);
            }
        }
    }

    #[test]
    fn every_kernel_is_cut_out_whole() {
        let mut names = BTreeSet::new();
        for packed in FILES {
            let (kernels, _) = packed.parts((8, 0));
            let text = packed.text((8, 0));
            let (head, items) = items(&text);
            assert!(head.contains(".version") && head.contains(".address_size"), "{head}");
            let found: Vec<&str> =
                items.iter().filter(|item| item.is_kernel).map(|item| item.name).collect();
            assert_eq!(found.join(" "), kernels, "{}", packed.file);
            for kernel in found {
                assert!(names.insert(kernel.to_owned()), "two kernels are called {kernel}");
            }
        }
        for kernel in ["add", "decode_q4_k", "sinusoid"] {
            assert!(names.contains(kernel), "{kernel}");
        }
    }

    #[test]
    fn a_kernel_comes_with_what_it_uses() {
        for capability in CAPABILITIES {
            let of = |kernel| module(capability, kernel).expect("it is there");
            let sinusoid = of("sinusoid");
            for used in ["__internal_trig_reduction_slowpathd", "__cudart_i2opi_d[144]"] {
                assert!(sinusoid.contains(used), "{used}");
            }
            assert!(!sinusoid.contains(".entry copy_spans("));
            assert!(!of("decode_q4_0").contains("IQ1_S_TABLE"));
            let table = of("decode_iq1_s");
            assert!(table.contains(".b8 IQ1_S_TABLE[4096]") && !table.contains("IQ2_S_TABLE"));
            assert!(module(capability, "decode").is_none(), "a name in part");
        }
        let tall = module((9, 0), "attention_tall_128").expect("it is there");
        assert!(tall.contains("\n.extern .shared .align 256 .b8 shared_tiles[];\n"));
    }
}
