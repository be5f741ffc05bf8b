//! LoRA as A1111's prompts name them: `<lora:name:weight>`.

/// A LoRA that a prompt names.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedLora {
    /// As the host calls its file.
    pub name: String,
    /// What its scale is multiplied by; 1 where the prompt says none.
    pub weight: f32,
}

/// How a tag begins.
const TAG: &str = "<lora:";

/// Splits a prompt into what the model is to read and the LoRA that it names. What looks like a tag
/// and is none stays.
pub fn split(prompt: &str) -> (String, Vec<NamedLora>) {
    let (mut text, mut named) = (String::new(), Vec::new());
    let mut rest = prompt;
    while let Some((before, tagged)) = rest.split_once(TAG) {
        text.push_str(before);
        match tagged.split_once('>').and_then(|(tag, after)| Some((lora(tag)?, after))) {
            Some((lora, after)) => {
                named.push(lora);
                rest = after;
            }
            None => {
                text.push_str(TAG);
                rest = tagged;
            }
        }
    }
    text.push_str(rest);
    match named.is_empty() {
        true => (text, named),
        // Where a tag stood at an end, a blank may be left.
        false => (text.trim().to_owned(), named),
    }
}

/// What stands in a tag: a name, perhaps a weight, perhaps what other programs put behind that.
fn lora(tag: &str) -> Option<NamedLora> {
    let mut parts = tag.split(':');
    let name = parts.next().map(str::trim).filter(|name| !name.is_empty())?;
    let weight = match parts.next() {
        Some(weight) => weight.trim().parse().ok().filter(|weight: &f32| weight.is_finite())?,
        None => 1.0,
    };
    Some(NamedLora { name: name.to_owned(), weight })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_taken_out_of_the_prompt() {
        for (prompt, text, loras) in [
            ("a cat", "a cat", &[][..]),
            ("a cat <lora:ink:0.8>", "a cat", &[("ink", 0.8)]),
            ("<lora:a><lora:b:-1:x> c", "c", &[("a", 1.0), ("b", -1.0)]),
            ("a < b <lora:> c", "a < b <lora:> c", &[]),
            ("<lora:a:b>", "<lora:a:b>", &[]),
            ("<lora:a:inf>", "<lora:a:inf>", &[]),
            ("<lora:never closed", "<lora:never closed", &[]),
            (" blanks stay ", " blanks stay ", &[]),
        ] {
            let (got, named) = split(prompt);
            let named: Vec<_> = named.iter().map(|l| (l.name.as_str(), l.weight)).collect();
            assert_eq!((got.as_str(), &named[..]), (text, loras), "{prompt}");
        }
    }
}
