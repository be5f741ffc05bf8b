//! The texts of a job: what its text encoders take, each once, and which of them a picture has.

use super::{Job, JobItem};

/// The different texts of a job's pictures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobTexts<'a> {
    /// What is encoded: first the prompts, in the order of the pictures that have them first, then
    /// the negative ones, if these count.
    pub all: Vec<PromptText<'a>>,
    /// By pass of the DiT, for each picture its text's place among all of them.
    pub rows: Vec<Vec<usize>>,
}

/// A text that is encoded.
#[derive(Debug, Clone, Copy)]
pub enum PromptText<'a> {
    /// What some pictures should show.
    Prompt {
        /// As its user wrote it.
        text: &'a str,
        /// The long text encoder's own, where there is one.
        second: Option<&'a str>,
    },
    /// What some pictures are not to show.
    Negative(&'a str),
}

impl<'a> PromptText<'a> {
    /// What each text encoder reads: the one for short texts, and the long one.
    pub fn read(&self) -> [&'a str; 2] {
        match *self {
            PromptText::Prompt { text, second } => [text, second.unwrap_or(text)],
            PromptText::Negative(text) => [text; 2],
        }
    }

    /// Whether it is what a picture is not to show.
    pub fn is_negative(&self) -> bool {
        matches!(self, PromptText::Negative(_))
    }
}

/// The same for the encoders is the same text.
impl PartialEq for PromptText<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.is_negative() == other.is_negative() && self.read() == other.read()
    }
}

impl Eq for PromptText<'_> {}

impl Job {
    /// The texts of its pictures, as they are encoded and as embeddings of them are told and
    /// brought. Negative ones count with true classifier-free guidance alone.
    pub fn texts(&self, true_cfg: bool) -> JobTexts<'_> {
        JobTexts::of(&self.items, true_cfg)
    }
}

impl JobItem {
    fn text(&self) -> PromptText<'_> {
        PromptText::Prompt { text: &self.prompt, second: self.prompt_2.as_deref() }
    }

    fn negative(&self) -> PromptText<'_> {
        PromptText::Negative(&self.negative_prompt)
    }
}

impl<'a> JobTexts<'a> {
    /// The texts of some pictures; see [`Job::texts`].
    pub fn of(items: &'a [JobItem], true_cfg: bool) -> JobTexts<'a> {
        let mut texts = JobTexts { all: Vec::new(), rows: Vec::new() };
        texts.add(items.iter().map(JobItem::text));
        if true_cfg {
            texts.add(items.iter().map(JobItem::negative));
        }
        texts
    }

    fn add(&mut self, texts: impl Iterator<Item = PromptText<'a>>) {
        let place = |text: PromptText<'a>| {
            self.all.iter().position(|known| *known == text).unwrap_or_else(|| {
                self.all.push(text);
                self.all.len() - 1
            })
        };
        self.rows.push(texts.map(place).collect());
    }

    /// How many more there are than those of one picture.
    pub fn more(&self) -> u32 {
        (self.all.len() - self.rows.len()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Rng;

    fn job(items: &[[&str; 3]]) -> Job {
        let item = |[prompt, second, negative]: &[&str; 3]| JobItem {
            prompt: (*prompt).to_owned(),
            prompt_2: (!second.is_empty()).then(|| (*second).to_owned()),
            negative_prompt: (*negative).to_owned(),
            seed: 1,
        };
        Job {
            items: items.iter().map(item).collect(),
            guidance_scale: 1.0,
            true_cfg_scale: 1.0,
            cfg_normalization: false,
            scheduler: crate::Scheduler::Automatic,
            sigmas: Vec::new(),
            eta: None,
            rng: Rng::Cpu,
            init_image: None,
            init_latents: None,
            dump_tensors: false,
            conditioning: Vec::new(),
            keep_conditioning: false,
        }
    }

    #[test]
    fn each_text_is_encoded_once_and_each_picture_has_its_own() {
        let job = job(&[["a", "", "x"], ["b", "", "x"], ["a", "a", "a"], ["a", "c", "x"]]);
        let plain = job.texts(false);
        let read: Vec<[&str; 2]> = plain.all.iter().map(PromptText::read).collect();
        assert_eq!(read, [["a", "a"], ["b", "b"], ["a", "c"]]);
        assert_eq!(plain.rows, [[0, 1, 0, 2]]);
        assert_eq!(plain.more(), 2);
        let guided = job.texts(true);
        assert_eq!(guided.rows, [[0, 1, 0, 2], [3, 3, 4, 3]]);
        assert_eq!((guided.all.len(), guided.more()), (5, 3));
        assert!(guided.all[3].is_negative() && guided.all[4].read() == ["a", "a"]);
    }

    #[test]
    fn pictures_of_one_prompt_have_no_more() {
        let job = job(&[["a", "", "a"], ["a", "", "a"]]);
        assert_eq!([job.texts(false).more(), job.texts(true).more()], [0, 0]);
    }
}
