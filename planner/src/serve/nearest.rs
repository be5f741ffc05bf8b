//! The names that are nearest to one that nobody has, for hints.

/// As much of a name as is compared: longer ones are no slips of the pen.
const CHARACTERS_MAX: usize = 64;

/// The fewest letters by which a part of a name is taken for it.
const WITHIN_MIN: usize = 3;

/// The most names that a hint repeats.
const NAMES_MAX: usize = 3;

/// The known names that may be meant: those that the fewest changes make of it, up to a third of
/// its letters; where none is so near, those that hold it or that it holds. Letters of either case
/// are the same.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let wanted = letters(name);
    let known: Vec<(Vec<char>, &str)> =
        known.into_iter().map(|name| (letters(name), name)).collect();
    let all = known.iter().map(|(letters, name)| {
        // What was only begun is as near as one slip.
        let is_begun = wanted.len() >= WITHIN_MIN && letters.starts_with(&wanted);
        let changes = changes(&wanted, letters);
        (if is_begun { changes.min(1) } else { changes }, *name)
    });
    let near = all.filter(|(changes, _)| *changes <= wanted.len().div_ceil(3));
    let near: Vec<(usize, &str)> = near.collect();
    let fewest = near.iter().map(|(changes, _)| *changes).min();
    let mut found: Vec<&str> = match fewest {
        Some(fewest) => near.iter().filter(|(n, _)| *n == fewest).map(|(_, name)| *name).collect(),
        None => {
            let holds =
                |letters: &[char]| is_within(&wanted, letters) || is_within(letters, &wanted);
            known.iter().filter(|(letters, _)| holds(letters)).map(|(_, name)| *name).collect()
        }
    };
    found.sort_unstable();
    found.truncate(NAMES_MAX);
    found
}

/// The end of an error's sentence: the names that may be meant, or some of those that there are.
pub fn hint<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let near = nearest(name, known.iter().copied());
    match (near.as_slice(), known.as_slice()) {
        (_, []) => "; hint: there is none".to_owned(),
        ([], all) => {
            let some: Vec<&str> = all.iter().copied().take(10).collect();
            let more = if some.len() < all.len() { ", …" } else { "" };
            format!("; hint: name one of {}{more}", some.join(", "))
        }
        (near, _) => format!("; hint: is {} meant?", near.join(" or ")),
    }
}

fn letters(name: &str) -> Vec<char> {
    name.chars().flat_map(char::to_lowercase).take(CHARACTERS_MAX).collect()
}

/// Whether a name, unless it is too short to say anything, stands in another.
fn is_within(part: &[char], whole: &[char]) -> bool {
    part.len() >= WITHIN_MIN && whole.windows(part.len()).any(|window| window == part)
}

/// How many letters must be put in, left out or replaced to make one of the other (Levenshtein).
fn changes(from: &[char], to: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, a) in from.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (at, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slips_are_seen() {
        let known = ["keep_alive", "keep_jobs", "keep_bytes", "queue_max"];
        assert_eq!(nearest("keepalive", known), ["keep_alive"]);
        assert_eq!(nearest("KEEP_JOB", known), ["keep_jobs"]);
        assert_eq!(nearest("queue", known), ["queue_max"]);
        assert_eq!(nearest("listen", known), [""; 0]);
        assert_eq!(hint("queue", known), "; hint: is queue_max meant?");
        let all = "; hint: name one of keep_alive, keep_jobs, keep_bytes, queue_max";
        assert_eq!(hint("x", known), all);
        assert_eq!(hint("x", []), "; hint: there is none");
    }

    proptest! {
        #[test]
        fn changes_are_a_distance(a in "[abc]{0,8}", b in "[abc]{0,8}", c in "[abc]{0,8}") {
            let [a, b, c] = [a, b, c].map(|name| letters(&name));
            prop_assert_eq!(changes(&a, &b) == 0, a == b);
            prop_assert_eq!(changes(&a, &b), changes(&b, &a));
            prop_assert!(changes(&a, &c) <= changes(&a, &b) + changes(&b, &c));
            prop_assert!(changes(&a, &b) <= a.len().max(b.len()));
        }

        #[test]
        fn any_name_gets_a_hint(name: String, known in prop::collection::vec(any::<String>(), 0..5)) {
            prop_assert!(hint(&name, known.iter().map(String::as_str)).starts_with("; hint: "));
        }
    }
}
