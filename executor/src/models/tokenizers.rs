//! Tokenizers of a model that are made when a job needs them: no size depends on them, and to make
//! those of two text encoders takes longer than all else of a plan (docs/planning.md).

use std::sync::OnceLock;

use super::ModelError;
use super::describe::Defect;
use crate::tokenizer::Tokenizer;

/// Makes a tokenizer of what was found.
type Make = dyn Fn() -> Result<Tokenizer, ModelError> + Send + Sync;

/// A text encoder's tokenizer, which is made when it is first asked for.
pub struct ModelTokenizer {
    make: Box<Make>,
    made: OnceLock<Tokenizer>,
}

impl ModelTokenizer {
    /// One that is made so.
    pub fn new(
        make: impl Fn() -> Result<Tokenizer, ModelError> + Send + Sync + 'static,
    ) -> ModelTokenizer {
        ModelTokenizer { make: Box::new(make), made: OnceLock::new() }
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// Its files are at fault.
    pub fn get(&self) -> Result<&Tokenizer, ModelError> {
        match self.made.get() {
            Some(made) => Ok(made),
            None => {
                let new = (self.make)()?;
                Ok(self.made.get_or_init(|| new))
            }
        }
    }
}

/// What is wrong with a tokenizer: nothing gives it, or, if it `is_made` to see, its files are at
/// fault.
pub fn defect(found: &Result<ModelTokenizer, ModelError>, is_made: bool) -> Option<Defect> {
    match found {
        Ok(tokenizer) if is_made => tokenizer.get().err().as_ref().map(Defect::from),
        Ok(_) => None,
        Err(error) => Some(Defect::from(error)),
    }
}
