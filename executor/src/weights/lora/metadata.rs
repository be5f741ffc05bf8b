//! The configuration that diffusers writes into a LoRA file's notes (`LORA_ADAPTER_METADATA_KEY` in
//! `loaders/lora_base.py`): PEFT's `LoraConfig` as JSON, its fields behind the part's name
//! (`transformer.lora_alpha`) in files of a pipeline and bare in files of one model.
//!
//! Of it only what the scale needs is understood: `lora_alpha`, `alpha_pattern`, `use_rslora`; and
//! `use_dora`, which is refused.

use std::collections::BTreeMap;

use serde_json::Value;

/// The note's name.
pub(super) const NOTE: &str = "lora_adapter_metadata";

/// The longest note. One with a pattern for each of 500 layers has about 50 KB.
pub(super) const NOTE_BYTES_MAX: usize = 1 << 20;

/// The configurations by part; the empty name has that of a file of one model.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Metadata(BTreeMap<String, Config>);

#[derive(Debug, Default, PartialEq)]
struct Config {
    alpha: Option<f64>,
    patterns: BTreeMap<String, f64>,
    root_of_rank: bool,
}

impl Metadata {
    /// Reads a note; the error is a sentence.
    pub fn parse(note: &str) -> Result<Metadata, String> {
        if note.len() > NOTE_BYTES_MAX {
            return Err(format!("it has {} bytes, the limit is {NOTE_BYTES_MAX}", note.len()));
        }
        let fields: BTreeMap<String, Value> =
            serde_json::from_str(note).map_err(|cause| format!("it is no JSON object: {cause}"))?;
        let mut configs: BTreeMap<String, Config> = BTreeMap::new();
        for (name, value) in &fields {
            let (part, field) = name.rsplit_once('.').unwrap_or(("", name));
            let config = configs.entry(part.to_owned()).or_default();
            config.take(field, value).map_err(|expected| format!("{name} is no {expected}"))?;
        }
        Ok(Metadata(configs))
    }

    /// The factor of a module's product without the user's weight. `alpha` is the file's own
    /// tensor, which counts before the note and is always divided by the rank; without either α is
    /// the rank.
    pub fn scale(&self, module: &str, alpha: Option<f32>, rank: usize) -> Result<f64, String> {
        let rank = rank as f64;
        if let Some(alpha) = alpha {
            return Ok(f64::from(alpha) / rank);
        }
        let Some((config, module)) = self.config(module) else { return Ok(1.0) };
        let alpha = config.pattern(module)?.or(config.alpha).unwrap_or(rank);
        // PEFT, `LoraLayer.update_layer`: rank-stabilised LoRA divides by the root.
        Ok(alpha / if config.root_of_rank { rank.sqrt() } else { rank })
    }

    /// The configuration for a module, and the module's name within its part.
    fn config<'a>(&self, module: &'a str) -> Option<(&Config, &'a str)> {
        let of_part = |(part, config)| {
            let name = module.strip_prefix::<&str>(part)?.strip_prefix('.')?;
            Some((config, name))
        };
        let parts = self.0.iter().map(|(part, config)| (part.as_str(), config));
        let own = parts.filter(|(part, _)| !part.is_empty()).find_map(of_part);
        own.or_else(|| self.0.get("").map(|config| (config, module)))
    }
}

impl Config {
    fn take(&mut self, field: &str, value: &Value) -> Result<(), &'static str> {
        let flag = || value.as_bool().ok_or("truth value");
        match field {
            "lora_alpha" => self.alpha = Some(number(value)?),
            "use_rslora" => self.root_of_rank = flag()?,
            "use_dora" if flag()? => return Err("false, and DoRA is not supported"),
            "alpha_pattern" => {
                let patterns = value.as_object().ok_or("object of numbers")?;
                for (pattern, alpha) in patterns {
                    self.patterns.insert(pattern.clone(), number(alpha)?);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The α of the patterns that fit a module: its name, or the end of it after a dot (PEFT,
    /// `get_pattern_key`). PEFT takes patterns as regular expressions and the first that fits;
    /// those that are more than names are refused, as are two that fit and differ.
    fn pattern(&self, module: &str) -> Result<Option<f64>, String> {
        let mut found: Option<f64> = None;
        for (pattern, &alpha) in &self.patterns {
            let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if !pattern.chars().all(is_name) {
                return Err(format!("the alpha_pattern {pattern:?} is no plain name"));
            }
            let rest = module.strip_suffix(pattern.as_str());
            if rest.is_none_or(|rest| !rest.is_empty() && !rest.ends_with('.')) {
                continue;
            }
            if found.is_some_and(|other| other != alpha) {
                return Err(format!("two entries of alpha_pattern fit {module} and differ"));
            }
            found = Some(alpha);
        }
        Ok(found)
    }
}

fn number(value: &Value) -> Result<f64, &'static str> {
    value.as_f64().ok_or("number")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTE: &str = r#"{
        "transformer.r": 8, "transformer.lora_alpha": 4, "transformer.use_dora": false,
        "transformer.alpha_pattern": {"attn.to_q": 16, "blocks.1.ff": 2},
        "text_encoder.lora_alpha": 6, "text_encoder.use_rslora": true,
        "text_encoder.target_modules": ["q_proj"]
    }"#;

    #[test]
    fn alpha_is_the_tensor_then_the_pattern_then_the_part_then_the_rank() {
        let metadata = Metadata::parse(NOTE).unwrap();
        let scale = |module, alpha| metadata.scale(module, alpha, 4).unwrap();
        assert_eq!(scale("transformer.blocks.0.attn.to_q", Some(2.0)), 0.5);
        assert_eq!(scale("transformer.blocks.0.attn.to_q", None), 4.0);
        assert_eq!(scale("transformer.blocks.1.ff", None), 0.5);
        assert_eq!(scale("transformer.more_blocks.1.ff", None), 1.0);
        assert_eq!(scale("transformer.blocks.0.proj", None), 1.0);
        assert_eq!(scale("text_encoder.layers.0.q_proj", None), 3.0);
        assert_eq!(scale("text_encoder.layers.0.q_proj", Some(8.0)), 2.0);
        assert_eq!(scale("text_encoder_2.layers.0.q", None), 1.0);
        assert_eq!(scale("blocks.0.attn.to_q", None), 1.0);
        assert_eq!(Metadata::default().scale("any", None, 4).unwrap(), 1.0);
    }

    #[test]
    fn a_file_of_one_model_has_bare_fields() {
        let metadata =
            Metadata::parse(r#"{"lora_alpha": 2, "alpha_pattern": {"b.c": 1}}"#).unwrap();
        assert_eq!(metadata.scale("a.x", None, 4).unwrap(), 0.5);
        assert_eq!(metadata.scale("a.b.c", None, 4).unwrap(), 0.25);
        assert_eq!(metadata.scale("b.c", None, 4).unwrap(), 0.25);
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        for note in [
            "",
            "[]",
            "{",
            r#"{"transformer.lora_alpha": "8"}"#,
            r#"{"lora_alpha": null}"#,
            r#"{"alpha_pattern": 3}"#,
            r#"{"alpha_pattern": {"a": []}}"#,
            r#"{"use_rslora": 1}"#,
            r#"{"transformer.use_dora": true}"#,
            &format!("{{\"r\":{}1}}", " ".repeat(NOTE_BYTES_MAX)),
        ] {
            assert!(Metadata::parse(note).is_err(), "{note:.60}");
        }
        let scale = |note: &str| Metadata::parse(note).unwrap().scale("blocks.0.to_q", None, 4);
        assert!(scale(r#"{"alpha_pattern": {"blocks\\.\\d+.to_q": 1}}"#).is_err());
        assert!(scale(r#"{"alpha_pattern": {"to_q": 1, "0.to_q": 2}}"#).is_err());
        assert_eq!(scale(r#"{"alpha_pattern": {"to_q": 1, "0.to_q": 1}}"#), Ok(0.25));
    }
}
