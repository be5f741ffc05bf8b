//! Notices of a running job as sentences.

use protocol::notice::Notice;

/// Most characters of a prompt's end that are shown; the middle of a longer one is left out.
const SHOWN_CHARS_MAX: usize = 160;

/// What stands for the middle.
const MIDDLE: &str = " … ";

/// A sentence without its end's full stop, on one line whatever the prompt holds.
pub fn sentence(notice: &Notice) -> String {
    match notice {
        Notice::PromptCut { encoder, tokens, prompt, left_out, .. } => {
            // Quoted as Rust does it, which escapes quotes, control characters and what turns a
            // line round.
            let shown = shortened(left_out);
            format!("{encoder} reads {tokens} tokens: left out of the {prompt}: {shown:?}")
        }
        Notice::SelfTest { message } => message.clone(),
        Notice::FileChanged { path } => format!(
            "{path} was changed while the job read it, so the picture may be wrong; hint: run the job again once \
             nothing writes to the file"
        ),
    }
}

/// A text, or its beginning and its end.
fn shortened(text: &str) -> String {
    let count = text.chars().count();
    if count <= SHOWN_CHARS_MAX {
        return text.to_owned();
    }
    let kept = SHOWN_CHARS_MAX - MIDDLE.chars().count();
    let end = kept / 2;
    let beginning: String = text.chars().take(kept - end).collect();
    let end: String = text.chars().skip(count - end).collect();
    format!("{beginning}{MIDDLE}{end}")
}

#[cfg(test)]
mod tests {
    use protocol::notice::PromptRole;

    use super::*;

    fn cut(left_out: &str) -> String {
        let (encoder, prompt) = ("CLIP".to_owned(), PromptRole::Prompt);
        let left_out = left_out.to_owned();
        sentence(&Notice::PromptCut { encoder, tokens: 77, prompt, left_out, pictures: vec![0] })
    }

    #[test]
    fn what_was_left_out_stands_on_one_line() {
        let says = "CLIP reads 77 tokens: left out of the prompt: ";
        assert_eq!(cut("a cat"), format!("{says}\"a cat\""));
        let escaped = cut("a\n\u{1b}[2Jb\u{202e}c \"d\" é");
        assert_eq!(escaped, format!("{says}\"a\\n\\u{{1b}}[2Jb\\u{{202e}}c \\\"d\\\" é\""));
    }

    #[test]
    fn a_long_text_loses_its_middle() {
        let text: String = (0..SHOWN_CHARS_MAX).map(|_| 'é').collect();
        assert_eq!(shortened(&text), text);
        let longer = format!("begin{text}end");
        let shown = shortened(&longer);
        assert_eq!(shown.chars().count(), SHOWN_CHARS_MAX);
        assert!(shown.starts_with("begin") && shown.ends_with("end") && shown.contains(MIDDLE));
    }
}
