//! What is found again, and what goes when there is no room.

use ipc_channel::ipc::IpcSharedMemory;

use super::*;

/// Embeddings of so many pages, filled with a number.
fn embeddings(pages: usize, fill: u8) -> Embeddings {
    Embeddings { values: IpcSharedMemory::from_byte(fill, pages * PAGE_BYTES as usize) }
}

fn cache(pages: u64) -> ConditioningCache {
    ConditioningCache::new(Bytes(pages * PAGE_BYTES))
}

fn keep(cache: &ConditioningCache, prompt: &str, pages: usize) {
    let fill = prompt.as_bytes()[0];
    cache.keep(&PromptKeys::made_up(1, &[prompt]), &[], vec![embeddings(pages, fill)]);
}

fn has(cache: &ConditioningCache, prompt: &str) -> bool {
    cache.has(&PromptKeys::made_up(1, &[prompt]))
}

#[test]
fn what_was_kept_is_found_by_the_same_prompts_alone() {
    let cache = cache(10);
    let keys = PromptKeys::made_up(1, &["a", "b"]);
    assert_eq!(cache.find(&keys), None);
    cache.keep(&keys, &[], vec![embeddings(1, 7), embeddings(2, 8)]);
    let found = cache.find(&keys).expect("both");
    assert_eq!(found.embeddings, [embeddings(1, 7), embeddings(2, 8)]);
    // In another role, and beside one that is not known.
    let swapped = cache.find(&PromptKeys::made_up(1, &["b", "a"])).expect("both");
    assert_eq!(swapped.embeddings, [embeddings(2, 8), embeddings(1, 7)]);
    assert!(has(&cache, "a") && !cache.has(&PromptKeys::made_up(1, &["a", "c"])));
    assert!(!cache.has(&PromptKeys::made_up(2, &["a"])), "of other encoders");
    let held = Bytes(3 * PAGE_BYTES);
    let figures = ConditioningFigures { held, hits: 4, misses: 2, evictions: 0 };
    assert_eq!(cache.figures(), figures);
}

#[test]
fn the_least_recently_used_goes_first_and_the_limit_holds() {
    let cache = cache(4);
    for prompt in ["a", "b", "c", "d"] {
        keep(&cache, prompt, 1);
    }
    cache.find(&PromptKeys::made_up(1, &["a"])).expect("it is there");
    keep(&cache, "e", 2);
    let there: Vec<bool> = ["a", "b", "c", "d", "e"].map(|prompt| has(&cache, prompt)).into();
    assert_eq!(there, [true, false, false, true, true]);
    assert_eq!((cache.figures().held, cache.figures().evictions), (Bytes(4 * PAGE_BYTES), 2));
    // In the place of what is there, and larger than all.
    keep(&cache, "e", 1);
    assert_eq!((cache.figures().held, cache.figures().evictions), (Bytes(3 * PAGE_BYTES), 2));
    keep(&cache, "f", 5);
    assert!(!has(&cache, "f") && has(&cache, "a"));
}

#[test]
fn no_more_prompts_are_kept_than_there_may_be_descriptors() {
    let cache = cache(1 << 20);
    for number in 0..PROMPTS_MAX + 3 {
        keep(&cache, &number.to_string(), 1);
    }
    let held = Bytes(PROMPTS_MAX as u64 * PAGE_BYTES);
    assert_eq!((cache.figures().held, cache.figures().evictions), (held, 3));
    assert!(!has(&cache, "2") && has(&cache, "3"));
}

#[test]
fn what_gpus_computed_is_not_mixed_with_what_they_did_not() {
    let cache = cache(10);
    let gpu = ["t5".to_owned()];
    cache.keep(&PromptKeys::made_up(1, &["a"]), &[], vec![embeddings(1, 1)]);
    cache.keep(&PromptKeys::made_up(1, &["b"]), &gpu, vec![embeddings(1, 2)]);
    assert!(!cache.has(&PromptKeys::made_up(1, &["a", "b"])));
    cache.keep(&PromptKeys::made_up(1, &["a"]), &gpu, vec![embeddings(1, 3)]);
    let found = cache.find(&PromptKeys::made_up(1, &["a", "b"])).expect("both by a GPU");
    assert_eq!(found.embeddings, [embeddings(1, 3), embeddings(1, 2)]);
    assert_eq!(*found.on_gpu, gpu);
}

#[test]
fn nothing_is_kept_where_nothing_may_be() {
    let cache = cache(0);
    assert!(!cache.is_on());
    keep(&cache, "a", 1);
    assert!(!has(&cache, "a"));
    assert_eq!(cache.figures().held, Bytes::ZERO);
}
