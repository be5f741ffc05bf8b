//! Adapters added to their weights, in private copies of the pages that hold them.
//!
//! Each element becomes `W + Σ scale · (B · A)`: summed in f64, where the products of two stored
//! numbers are exact, and rounded to nearest even into the weight's own type. So the result is the
//! formula's to half a unit in the last place, and depends neither on the number of threads nor on
//! how rows are grouped.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use protocol::{Bytes, StorageType};
use rayon::prelude::*;

use super::LoraError;
use super::adapter::Adapter;
use crate::weights::mapping::covered_page_bytes;
use crate::weights::view::{narrow, widen};
use crate::weights::{WeightFiles, WeightView};

/// Rows of a task. A row of A is widened once for all of them.
const TASK_ROWS: usize = 16;

/// Columns of the sums that a task holds at a time: with its rows 32 KiB, the size of common first
/// level caches.
const TASK_COLUMNS: usize = 256;

/// Rows of A that are added to the sums at a time, so that these are read and written less often.
const TASK_RANKS: usize = 4;

/// What [`merge`] makes private: the pages under all rows that are changed.
pub(super) fn private_bytes(adapters: &[Adapter]) -> Bytes {
    let mut ranges: BTreeMap<usize, Vec<Range<u64>>> = BTreeMap::new();
    for adapter in adapters {
        let Range { start, end } = adapter.base.byte_range();
        let of_file = ranges.entry(adapter.base.file_index()).or_default();
        of_file.push(start as u64..end as u64);
    }
    ranges.into_values().map(covered_page_bytes).sum()
}

/// The component's weights with all adapters added.
pub(super) fn merge(
    weights: &Arc<WeightFiles>,
    adapters: &[Adapter],
    files: &[WeightFiles],
    stop: &dyn Fn() -> bool,
) -> Result<WeightFiles, LoraError> {
    if let Some(adapter) = adapters.iter().find(|adapter| !adapter.base.storage().can_change()) {
        let (weight, storage) = (adapter.weight.clone(), adapter.base.storage());
        return Err(LoraError::Unchangeable { weight, storage });
    }
    weights.check_unchanged()?;
    files.iter().try_for_each(WeightFiles::check_unchanged)?;
    let mut merged = WeightFiles::clone(weights);
    let touched: BTreeSet<usize> = adapters.iter().map(|a| a.base.file_index()).collect();
    for file_index in touched {
        let mut copy = weights.mapped(file_index).private_copy()?;
        let inside = adapters.iter().filter(|a| a.base.file_index() == file_index);
        for run in runs(inside) {
            if stop() {
                return Err(LoraError::Stopped);
            }
            if !run.add(files, &mut copy.bytes_mut()[run.bytes.clone()]) {
                return Err(LoraError::NotFinite { weight: run.adapters[0].weight.clone() });
            }
        }
        merged.replace(file_index, copy.finish()?);
    }
    merged.set_private_bytes(private_bytes(adapters));
    Ok(merged)
}

/// Neighbouring rows of one weight that the same adapters change.
struct ChangedRows<'a> {
    rows: Range<usize>,
    columns: usize,
    storage: StorageType,
    /// Where the rows are in their file.
    bytes: Range<usize>,
    adapters: Vec<&'a Adapter>,
}

/// Cuts the changed rows of each weight where the set of adapters that change them does.
fn runs<'a>(adapters: impl Iterator<Item = &'a Adapter>) -> Vec<ChangedRows<'a>> {
    let mut by_weight: BTreeMap<&str, Vec<&Adapter>> = BTreeMap::new();
    for adapter in adapters {
        by_weight.entry(&adapter.weight).or_default().push(adapter);
    }
    let mut runs = Vec::new();
    for adapters in by_weight.into_values() {
        let ends = |adapter: &&Adapter| [adapter.first_row, adapter.first_row + adapter.rows()];
        let cuts: BTreeSet<usize> = adapters.iter().flat_map(ends).collect();
        let cuts: Vec<usize> = cuts.into_iter().collect();
        for cut in cuts.windows(2) {
            let rows = cut[0]..cut[1];
            let changes = |adapter: &&Adapter| {
                adapter.first_row <= rows.start && rows.end <= adapter.first_row + adapter.rows()
            };
            let adapters: Vec<&Adapter> = adapters.iter().copied().filter(changes).collect();
            let Some(first) = adapters.first() else { continue };
            let part = first.base.rows(rows.start - first.first_row..rows.end - first.first_row);
            let (columns, storage) = (part.shape()[1], part.storage());
            runs.push(ChangedRows { rows, columns, storage, bytes: part.byte_range(), adapters });
        }
    }
    runs
}

impl ChangedRows<'_> {
    /// Adds all products to the rows, whose stored bytes these are. `false` if a result is not
    /// finite.
    fn add(&self, files: &[WeightFiles], bytes: &mut [u8]) -> bool {
        let products = self.adapters.iter().map(|adapter| LowRankProduct {
            a: adapter.a.view(&files[adapter.file]),
            b: adapter.b.view(&files[adapter.file]),
            first_row: adapter.first_row,
            scale: adapter.scale,
        });
        let products: Vec<LowRankProduct<'_>> = products.collect();
        let row_bytes = self.columns * self.storage.element_bytes();
        let tasks = bytes.par_chunks_mut(TASK_ROWS * row_bytes).enumerate();
        let finite = tasks.map(|(task, bytes)| {
            let first_row = self.rows.start + task * TASK_ROWS;
            self.add_to_rows(first_row, bytes, &products)
        });
        finite.reduce(|| true, |a, b| a && b)
    }

    /// The same for the few rows of one task, the first of them `first_row` of the weight.
    fn add_to_rows(
        &self,
        first_row: usize,
        bytes: &mut [u8],
        products: &[LowRankProduct<'_>],
    ) -> bool {
        let element_bytes = self.storage.element_bytes();
        let row_bytes = self.columns * element_bytes;
        let mut finite = true;
        for from in (0..self.columns).step_by(TASK_COLUMNS) {
            let columns = from..self.columns.min(from + TASK_COLUMNS);
            let mut sums = [[0.0; TASK_COLUMNS]; TASK_ROWS];
            let sums = &mut sums[..bytes.len() / row_bytes];
            for product in products {
                product.add_to(sums, first_row, columns.clone());
            }
            for (sums, row) in sums.iter_mut().zip(bytes.chunks_exact_mut(row_bytes)) {
                let stored = &mut row[columns.start * element_bytes..columns.end * element_bytes];
                let mut values = [0.0; TASK_COLUMNS];
                widen(self.storage, stored, &mut values[..columns.len()]);
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(value));
                finite &= narrow(self.storage, &sums[..columns.len()], stored);
            }
        }
        finite
    }
}

/// `scale · B · A`
struct LowRankProduct<'a> {
    a: WeightView<'a>,
    b: WeightView<'a>,
    /// The weight's row that B's first belongs to.
    first_row: usize,
    scale: f64,
}

impl LowRankProduct<'_> {
    /// Adds some columns of some rows.
    fn add_to(&self, sums: &mut [[f64; TASK_COLUMNS]], first_row: usize, columns: Range<usize>) {
        let rank = self.a.shape[0];
        for from in (0..rank).step_by(TASK_RANKS) {
            let ranks = from..rank.min(from + TASK_RANKS);
            // Rows beyond the rank stay zero, and add nothing.
            let mut a = [[0.0; TASK_COLUMNS]; TASK_RANKS];
            for (a, index) in a.iter_mut().zip(ranks.clone()) {
                self.read_a(index, columns.clone(), a);
            }
            for (sums, row) in sums.iter_mut().zip(first_row - self.first_row..) {
                let mut b = [0.0; TASK_RANKS];
                self.b.read(row * rank + from, &mut b[..ranks.len()]);
                add_products(sums, &a, b.map(|b| self.scale * f64::from(b)));
            }
        }
    }

    fn read_a(&self, index: usize, columns: Range<usize>, to: &mut [f64; TASK_COLUMNS]) {
        let mut values = [0.0; TASK_COLUMNS];
        let from = index * self.a.shape[1] + columns.start;
        self.a.read(from, &mut values[..columns.len()]);
        to.iter_mut().zip(values).for_each(|(to, value)| *to = f64::from(value));
    }
}

/// `sums += factors · a`
fn add_products(
    sums: &mut [f64; TASK_COLUMNS],
    a: &[[f64; TASK_COLUMNS]; TASK_RANKS],
    factors: [f64; TASK_RANKS],
) {
    for (column, sum) in sums.iter_mut().enumerate() {
        for (a, factor) in a.iter().zip(factors) {
            *sum += factor * a[column];
        }
    }
}
