//! One executor, several jobs.

use super::*;

#[test]
fn the_same_again_sends_nothing_and_needs_no_load() {
    let bench = Bench::new(one_device(64));
    let (mut warm, shape) = (bench.executor(), shape([64, 64], 1));
    let first = bench.run(&mut warm, &shape, "a red circle").expect("it fits");
    assert_exact(&first);
    assert!(sent(&first) > 0, "the first one loads");
    assert!(first.plan.components.iter().all(|c| c.residency == Residency::Resident));
    let second = bench.run(&mut warm, &shape, "a red circle").expect("it fits");
    assert_exact(&second);
    assert_eq!(sent(&second), 0);
    assert_eq!(second.plan, first.plan, "no new plan is loaded");
    assert_eq!(pictures(&second), pictures(&first));
    let other = bench.run(&mut warm, &shape, "a blue square").expect("it fits");
    assert_eq!(sent(&other), 0);
    assert_eq!(pictures(&other), bench.alone(&shape, "a blue square"));
    warm.end();
}

#[test]
fn another_size_keeps_the_weights_where_they_lie() {
    let bench = Bench::new(one_device(64));
    let mut warm = bench.executor();
    bench.run(&mut warm, &shape([64, 64], 1), "a red circle").expect("it fits");
    let mut last = 1;
    for (size, batch) in [([96, 64], 1), ([64, 64], 3), ([160, 128], 2), ([16, 16], 1)] {
        let shape = shape(size, batch);
        let outcome = bench.run(&mut warm, &shape, "a red circle").expect("it fits");
        assert_exact(&outcome);
        assert_eq!(outcome.plan.keeps_weights_of, Some(last), "{size:?}");
        assert_eq!(sent(&outcome), 0, "{size:?}");
        assert!(outcome.plan.generation > last, "generations rise");
        assert_eq!(pictures(&outcome), bench.alone(&shape, "a red circle"), "{size:?}");
        last = outcome.plan.generation;
    }
    warm.end();
}

#[test]
fn replicas_keep_their_weights_for_other_batches() {
    let device =
        "[[device]]\nkind = \"virtual\"\ntotal = \"64MiB\"\nlink = \"8GiB/s\"\nthreads = 1\n";
    let host = "name = \"two\"\n[host]\ncompute = false\nstorage_bandwidth = \"9GB/s\"\n";
    let bench = Bench::new(format!("{host}{device}{device}"));
    let mut warm = bench.executor();
    let counts = |outcome: &Outcome| {
        let dit = outcome.plan.components.iter().find(|c| c.name == "dit").expect("a DiT");
        dit.division.item_counts().map(<[u32]>::to_vec)
    };
    let size = [160, 128];
    let first = bench.run(&mut warm, &shape(size, 2), "a red circle").expect("it fits");
    assert_eq!(counts(&first), Some(vec![1, 1]), "{:?}", first.plan.components);
    for (batch, expected) in [(3, vec![2, 1]), (4, vec![2, 2]), (2, vec![1, 1])] {
        let shape = shape(size, batch);
        let outcome = bench.run(&mut warm, &shape, "a red circle").expect("it fits");
        assert_exact(&outcome);
        assert!(outcome.plan.keeps_weights_of.is_some(), "{batch} pictures");
        assert_eq!((sent(&outcome), counts(&outcome)), (0, Some(expected)), "{batch} pictures");
        assert_eq!(pictures(&outcome), bench.alone(&shape, "a red circle"), "{batch} pictures");
    }
    // One picture is not shared by two devices.
    let one = bench.run(&mut warm, &shape(size, 1), "a red circle").expect("it fits");
    assert_exact(&one);
    assert_eq!((counts(&one), one.plan.keeps_weights_of), (None, None));
    assert_eq!(pictures(&one), bench.alone(&shape(size, 1), "a red circle"));
    warm.end();
}

#[test]
fn twenty_jobs_of_changing_sizes_batches_and_prompts() {
    let bench = Bench::new(one_device(64));
    let mut warm = bench.executor();
    let mut last = 0;
    for number in 0..20_u32 {
        let size = [64 + 16 * (number * 7 % 5), 64 + 16 * (number * 3 % 4)];
        let (shape, prompt) = (shape(size, 1 + number % 3), format!("picture {number}"));
        let outcome = bench.run(&mut warm, &shape, &prompt).expect("it fits");
        assert_exact(&outcome);
        assert_eq!(outcome.attempts, 1, "{number}");
        assert!(outcome.plan.generation > last, "{number}: each has another size or batch");
        assert!(number == 0 || sent(&outcome) == 0, "{number}");
        last = outcome.plan.generation;
        if number % 7 == 6 {
            assert_eq!(pictures(&outcome), bench.alone(&shape, &prompt), "{number}");
        }
    }
    warm.end();
}

#[test]
fn where_the_weights_cannot_stay_a_plan_of_its_own_is_loaded() {
    // All of the model is resident for a small picture; a large one needs most of its place.
    let bench = Bench::new(one_device(12));
    let mut warm = bench.executor();
    let small = bench.run(&mut warm, &shape([16, 16], 1), "a red circle").expect("it fits");
    assert!(small.plan.components.iter().any(|c| c.residency == Residency::Resident));
    let large_shape = shape([320, 320], 4);
    let large = bench.run(&mut warm, &large_shape, "a red circle").expect("it fits");
    assert_exact(&large);
    assert_eq!((large.plan.keeps_weights_of, large.attempts), (None, 1));
    assert!(sent(&large) > 0);
    assert_eq!(pictures(&large), bench.alone(&large_shape, "a red circle"));
    warm.end();
}

#[test]
fn weights_that_were_changed_are_opened_again() {
    let mut bench = Bench::new(one_device(64));
    let copy = bench.home.path("model");
    let copied = std::process::Command::new("cp").arg("-rL").arg(&bench.model).arg(&copy).status();
    assert!(copied.expect("cp").success());
    bench.model.clone_from(&copy);
    let (mut warm, shape) = (bench.executor(), shape([64, 64], 1));
    let first = bench.run(&mut warm, &shape, "a red circle").expect("it fits");
    // Another file in its place, with other contents: some weights of the decoder are 0.
    let path = copy.join("vae/diffusion_pytorch_model.safetensors");
    let mut bytes = std::fs::read(&path).expect("the VAE");
    let quarter = bytes.len() / 4;
    bytes[quarter..2 * quarter].iter_mut().for_each(|byte| *byte = 0);
    std::fs::remove_file(&path).expect("it is a copy");
    std::fs::write(&path, bytes).expect("it can be written");
    let second = bench.run(&mut warm, &shape, "a red circle").expect("it fits");
    assert!(sent(&second) > 0, "everything is loaded anew");
    assert_ne!(pictures(&second), pictures(&first));
    assert_eq!(pictures(&second), bench.alone(&shape, "a red circle"));
    warm.end();
}
