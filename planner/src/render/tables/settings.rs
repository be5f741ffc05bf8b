//! How a picture was made, for people.

use super::{table, text_of};
use crate::job::infotext::{Reading, pairs, printable};

/// The settings in a picture's file, a line each; what is not understood of them stands last.
pub fn settings(picture: &str, reading: &Reading) -> String {
    let Reading { settings, unknown } = reading;
    let mut rows = table(&["Prompt", &printable(&settings.prompt)], 2);
    let negative = settings.negative_prompt.iter();
    let negative = negative.map(|text| ("Negative prompt".to_owned(), text.clone()));
    for (key, value) in negative.chain(pairs(settings)) {
        rows.add_row([key, printable(&value)]);
    }
    for (key, value) in unknown {
        rows.add_row([format!("{key} (not understood)"), printable(value)]);
    }
    format!("{picture}\n{}", text_of(&rows))
}
