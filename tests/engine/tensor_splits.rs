//! Components cut over several devices by heads and features: their pictures are those of one
//! device but for rounding, and to the bit the same for the same shares, wherever weights wait; in
//! the bytes that the plan states, without races.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use crate::support::fixture;
use crate::support::plans::{self, Choice, Hardware};
use crate::support::wide::Wide;
use executor::families;
use executor::models::Model;
use executor::runtime::schedules;
use executor::schedule::{Instruction, Run};
use protocol::{Division, GraphOptions, JobShape, Plan, Residency};

const JOB: JobShape =
    JobShape { width: 64, height: 48, steps: 2, max_sequence_length: 32, ..JobShape::small() };

/// The heads on the first devices, by shares; some of what is streamed stays.
fn by_heads(shares: &[u32], residency: Residency) -> impl Fn(usize) -> Choice {
    move |segments| {
        let mut choice = Choice::one(0, segments, residency);
        if residency.is_streamed() {
            choice.residencies[segments - 1] = Residency::Lazy;
            choice.lookahead = 2;
        }
        choice.devices = (0..shares.len()).map(Some).collect();
        choice.division = Division::Tensor { shares: shares.to_vec() };
        choice
    }
}

/// The same, but each device holds other segments than the one before it, and has fewer slots.
fn own_sets(choice: impl Fn(usize) -> Choice) -> impl Fn(usize) -> Choice {
    move |segments| {
        let mut choice = choice(segments);
        let lanes = choice.devices.len();
        let held = (0..lanes).flat_map(|lane| (0..segments).map(move |segment| (lane, segment)));
        let held = held.filter(|(lane, segment)| (lane + segment) % 3 == 0);
        choice.own_residencies = held.map(|at| (at, Residency::Resident)).collect();
        choice.lookahead = lanes as u32;
        choice.own_slots = (1..=lanes as u32).rev().collect();
        choice
    }
}

fn plan(
    dir: &Path,
    model: &dyn Model,
    job: &JobShape,
    exact_matmul: bool,
    dit: impl Fn(usize) -> Choice,
) -> Plan {
    let options = GraphOptions { exact_matmul, ..GraphOptions::default() };
    let hardware =
        Hardware { devices: 4, apart: 0b1010, link_bytes_per_s: 1e10, ..Hardware::none() };
    let choices = plans::with_dit(model, job, dit);
    plans::plan(dir, model, job, &options, &hardware, &choices)
}

/// Runs a plan in its bytes, without races, and returns its pictures.
#[track_caller]
fn run(plan: &Plan, model: &Arc<dyn Model>, what: &str) -> Vec<u8> {
    let (result, races) = plans::run_traced(plan, model, None).expect("a run");
    assert!(races.is_empty(), "{what}: {}", races[0]);
    for device in &result.usage.devices {
        for phase in &device.phases {
            let [planned, used] = [phase.predicted_peak_bytes, phase.measured_peak_bytes];
            assert_eq!(planned, used, "{what}: {} in {}", device.id, phase.phase);
        }
    }
    result.pixels
}

/// Pictures of other sums.
#[track_caller]
fn assert_close(pixels: &[u8], expected: &[u8], exact: bool, what: &str) {
    let (most, part) = plans::apart(pixels, expected);
    let is_close = plans::is_close(most, part, exact);
    assert!(is_close, "{what}: {:.1} % of all values differ, by up to {most}", 100.0 * part);
}

/// The shares give the pictures of one device, and the same bits in each residency; with products
/// of the weights' values, and with rounded activations where a processor has these.
fn each_gives_the_picture(dir: &Path, job: &JobShape, shares: &[&[u32]]) {
    let model = families::open(dir).expect("a whole model");
    for exact in [true, false] {
        let one = |segments| Choice::one(0, segments, Residency::Resident);
        let one = plan(dir, &*model, job, exact, one);
        let expected = plans::run(&one, &model).expect("one device").pixels;
        for shares in shares {
            let painted = |residency| {
                let what = format!("{shares:?}, {residency}, exact: {exact}");
                let plan = plan(dir, &*model, job, exact, by_heads(shares, residency));
                run(&plan, &model, &what)
            };
            let first = painted(Residency::Resident);
            assert_close(&first, &expected, exact, &format!("{shares:?}, exact: {exact}"));
            use Residency::{Lazy, Locked, Resident, Streamed};
            for residency in [Resident, Lazy, Streamed, Locked] {
                assert!(painted(residency) == first, "{shares:?}: other bits, {residency}");
            }
            let own = plan(dir, &*model, job, exact, own_sets(by_heads(shares, Streamed)));
            assert!(run(&own, &model, "own sets") == first, "{shares:?}: other bits, own sets");
        }
    }
}

#[test]
fn heads_of_the_references_give_the_pictures_of_one_device() {
    each_gives_the_picture(&fixture("flux_schnell"), &JOB, &[&[1, 1]]);
    let guided = JobShape { true_cfg: true, batch: 2, ..JOB };
    each_gives_the_picture(&fixture("flux_dev"), &guided, &[&[1, 1], &[3, 1], &[1, 1, 1, 1]]);
    // The two prompts have as many tokens as they have: their graphs differ.
    let long = JobShape { true_cfg: true, max_sequence_length: 96, ..JOB };
    each_gives_the_picture(&fixture("zimage_turbo"), &long, &[&[1, 1]]);
    each_gives_the_picture(&fixture("flux2_klein"), &guided, &[&[1, 1]]);
    each_gives_the_picture(&fixture("qwen_image"), &long, &[&[1, 1]]);
}

#[test]
fn heads_of_large_matrices_give_the_picture_of_one_device() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    Wide::bf16().write(dir.path()).expect("a file system with room");
    each_gives_the_picture(dir.path(), &JOB, &[&[1, 1], &[1, 3], &[2, 1, 1]]);
}

#[test]
fn sums_of_many_tokens_cross_in_parts() {
    let many = JobShape { width: 256, height: 192, batch: 2, ..JOB };
    let dir = fixture("flux_dev");
    assert_eq!(parts_of(&dir, &many), BTreeSet::from([3]));
    each_gives_the_picture(&dir, &many, &[&[1, 1], &[2, 1, 1]]);
    // Prompts that are shorter than they may be have fewer tokens than parts need.
    let prompts = JobShape { true_cfg: true, max_sequence_length: 300, ..JOB };
    for name in ["zimage_turbo", "qwen_image"] {
        assert!(parts_of(&fixture(name), &prompts).contains(&2), "{name}");
        each_gives_the_picture(&fixture(name), &prompts, &[&[1, 1]]);
    }
}

/// In how many parts the DiT's nodes are computed that are computed in several, by two devices.
fn parts_of(dir: &Path, job: &JobShape) -> BTreeSet<usize> {
    let model = families::open(dir).expect("a whole model");
    let plan = plan(dir, &*model, job, true, by_heads(&[1, 1], Residency::Resident));
    let index = plan.components.iter().position(|c| c.name == "dit").expect("a DiT");
    let scheduled = schedules(&plan, &*model).expect("its schedules");
    let mut runs = BTreeMap::new();
    for instruction in &scheduled[index].variants[0].program {
        if let Instruction::Run(Run { node, tokens: Some(_), .. }) = instruction {
            *runs.entry(*node).or_insert(0) += 1;
        }
    }
    runs.into_values().collect()
}

#[test]
fn each_device_has_its_part_of_the_blocks() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    Wide::bf16().write(dir.path()).expect("a file system with room");
    let model = families::open(dir.path()).expect("a whole model");
    let plan = plan(dir.path(), &*model, &JOB, false, by_heads(&[1, 1], Residency::Resident));
    let dit = plan.components.iter().find(|c| c.name == "dit").expect("a DiT");
    let [block, other]: [u64; 2] = [0, 1].map(|part| {
        let blocks = dit.segments.iter().filter(|segment| segment.name.contains("blocks"));
        blocks.map(|segment| segment.part_bytes[part].0).sum()
    });
    let [larger, smaller] = [block.max(other), block.min(other)];
    assert!(larger * 100 <= smaller * 103, "{block} and {other} B are no halves");
    let scheduled = schedules(&plan, &*model).expect("its schedules");
    let index = plan.components.iter().position(|c| c.name == "dit").expect("a DiT");
    let schedule = &scheduled[index].variants[0];
    let copied: u64 = schedule.transfers.iter().map(|transfer| transfer.bytes().0).sum();
    // Two reductions in each of two double blocks for both streams, one in each of three single
    // ones: of 12 and 32 tokens, 256 features of 4 bytes, to the other device each.
    let stream = 2 * 256 * 4 * (12 + 32) as u64;
    let sums = (2 * 2 + 3) * stream;
    assert!((sums..sums + 2 * stream).contains(&copied), "{copied} B cross, {sums} B are summed");
}

#[test]
fn what_has_too_few_heads_is_refused() {
    let dir = fixture("flux_schnell");
    let model = families::open(&dir).expect("a whole model");
    let mut plan = plan(&dir, &*model, &JOB, false, by_heads(&[1, 1], Residency::Resident));
    let dit = plan.components.iter().position(|c| c.name == "dit").expect("a DiT");
    plan.components[dit].division = Division::Tensor { shares: vec![1, 1, 1] };
    let refused = schedules(&plan, &*model).map(drop).expect_err("two heads for three devices");
    let said = "dit: its heads can be shared by 2 devices, not by 3";
    assert!(refused.to_string().contains(said), "{refused}");
    let clip = plan.components.iter().position(|c| c.name == "t5").expect("a T5");
    plan.components[dit].division = Division::Tensor { shares: vec![1, 1] };
    plan.components[clip].division = Division::Tensor { shares: vec![1, 1] };
    let refused = schedules(&plan, &*model).map(drop).expect_err("biased attention");
    let said = "t5: it has no heads that devices can share";
    assert!(refused.to_string().contains(said), "{refused}");
}
