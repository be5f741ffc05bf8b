//! GGUF files made byte by byte, so that they can be wrong.

/// Numbers of the types of values.
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const TEXT: u32 = 8;
pub const ARRAY: u32 = 9;

/// A file, part by part. [`File::bytes`] puts them together as they are, right or wrong.
#[derive(Clone)]
pub struct File {
    pub magic: [u8; 4],
    pub version: u32,
    /// What the file says; otherwise as many as there are.
    pub tensor_count: Option<u64>,
    pub key_count: Option<u64>,
    /// Made by [`key`].
    pub keys: Vec<Vec<u8>>,
    /// Made by [`tensor`].
    pub tensors: Vec<Vec<u8>>,
    pub alignment: usize,
    pub data: Vec<u8>,
}

impl File {
    /// An empty one.
    pub fn new() -> File {
        File {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            key_count: None,
            keys: vec![key("general.architecture", TEXT, &text("test"))],
            tensors: Vec::new(),
            alignment: 32,
            data: Vec::new(),
        }
    }

    /// Appends a tensor with its data; `dimensions` innermost first.
    pub fn with(mut self, name: &str, dimensions: &[u64], kind: u32, data: &[u8]) -> File {
        let offset = self.data.len().next_multiple_of(self.alignment);
        self.data.resize(offset, 0);
        self.data.extend_from_slice(data);
        self.tensors.push(tensor(name, dimensions, kind, offset as u64));
        self
    }

    /// Appends a key.
    pub fn with_key(mut self, name: &str, kind: u32, value: &[u8]) -> File {
        self.keys.push(key(name, kind, value));
        self
    }

    /// Everything before the data.
    pub fn header(&self) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        bytes.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        bytes.extend(self.keys.concat());
        bytes.extend(self.tensors.concat());
        bytes
    }

    /// The whole file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.header();
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        bytes.extend_from_slice(&self.data);
        bytes
    }
}

/// A text with its length.
pub fn text(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// A key with its value, whose bytes are already as in the file.
pub fn key(name: impl AsRef<[u8]>, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(name), &kind.to_le_bytes()[..], value].concat()
}

/// An array of so many elements, whose bytes are already as in the file.
pub fn array(kind: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

/// An entry of the table of tensors; `dimensions` innermost first.
pub fn tensor(name: impl AsRef<[u8]>, dimensions: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut entry = text(name);
    entry.extend((dimensions.len() as u32).to_le_bytes());
    dimensions.iter().for_each(|size| entry.extend(size.to_le_bytes()));
    entry.extend(kind.to_le_bytes());
    entry.extend(offset.to_le_bytes());
    entry
}
