//! Intermediate tensors of a job, under the names that the reference files use.
//!
//! A tool for comparison, outside of the plan: what it collects is not counted.

use std::collections::BTreeMap;

use safetensors::tensor::{Dtype, TensorView};

/// The tensors collected so far; nothing unless they were asked for.
#[derive(Default)]
pub struct Dump {
    wanted: bool,
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

impl Dump {
    /// Collects only where `wanted`.
    pub fn new(wanted: bool) -> Dump {
        Dump { wanted, tensors: BTreeMap::new() }
    }

    /// Whether anything is collected.
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Takes a copy of floating-point values.
    pub fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        self.take(name, Dtype::F32, shape, || bytemuck::cast_slice(values).to_vec());
    }

    /// Takes a copy of token ids, as 64-bit integers.
    pub fn ids(&mut self, name: &str, ids: &[i32]) {
        let wide = || ids.iter().flat_map(|&id| i64::from(id).to_le_bytes()).collect();
        self.take(name, Dtype::I64, &[1, ids.len()], wide);
    }

    /// Appends one batch item to a tensor whose first dimension is the batch.
    pub fn append(&mut self, name: &str, item_shape: &[usize], values: &[f32]) {
        self.append_bytes(name, Dtype::F32, item_shape, || bytemuck::cast_slice(values));
    }

    /// As [`Dump::append`], of bytes.
    pub fn append_pixels(&mut self, name: &str, item_shape: &[usize], pixels: &[u8]) {
        self.append_bytes(name, Dtype::U8, item_shape, || pixels);
    }

    /// As [`Dump::append`], of `[height, width, channels]` turned to `[channels, height, width]`.
    pub fn append_nhwc(&mut self, name: &str, shape: [usize; 3], values: &[f32]) {
        if !self.wanted {
            return;
        }
        let [height, width, channels] = shape;
        let plane = |c: usize| (0..height * width).map(move |cell| values[cell * channels + c]);
        let nchw: Vec<f32> = (0..channels).flat_map(plane).collect();
        self.append(name, &[channels, height, width], &nchw);
    }

    /// Everything as the bytes of a safetensors file; `None` unless it was asked for.
    pub fn serialize(&self) -> Option<Vec<u8>> {
        if !self.wanted {
            return None;
        }
        let mut views = Vec::with_capacity(self.tensors.len());
        for (name, (dtype, shape, bytes)) in &self.tensors {
            let view =
                TensorView::new(*dtype, shape.clone(), bytes).expect("shapes fit their bytes");
            views.push((name.clone(), view));
        }
        Some(safetensors::serialize(views, None).expect("tensors of known types serialize"))
    }

    fn take(&mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: impl FnOnce() -> Vec<u8>) {
        if self.wanted {
            self.tensors.insert(name.to_owned(), (dtype, shape.to_vec(), bytes()));
        }
    }

    fn append_bytes<'a>(
        &mut self,
        name: &str,
        dtype: Dtype,
        item_shape: &[usize],
        bytes: impl FnOnce() -> &'a [u8],
    ) {
        if !self.wanted {
            return;
        }
        let entry = self.tensors.entry(name.to_owned()).or_insert_with(|| {
            let shape = std::iter::once(0).chain(item_shape.iter().copied()).collect();
            (dtype, shape, Vec::new())
        });
        entry.1[0] += 1;
        entry.2.extend_from_slice(bytes());
    }
}
