//! Names lead to what they were given for, and to nothing else.

use std::fs;

use proptest::prelude::*;
use protocol::{Bytes, PartFlag};

use super::*;
use crate::serve::config::ConfigLayer;
use crate::serve::desk::job::{Class, KeepAlive};

/// Files by name: those that end in `/` are directories in diffusers format.
fn folder(names: &[&str]) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    for name in names {
        let path = home.path().join(name);
        match name.ends_with('/') {
            true => {
                fs::create_dir_all(path.join("vae")).unwrap();
                fs::write(path.join("model_index.json"), "{}").unwrap();
                fs::write(path.join("vae/w.safetensors"), "12345678").unwrap();
            }
            false => fs::write(path, "1234").unwrap(),
        }
    }
    home
}

fn config(models: &[&Path], text: &str) -> ServeConfig {
    let config = ConfigLayer::parse(text, "serve.toml").unwrap().finish().unwrap();
    ServeConfig { models: models.iter().map(|path| path.to_path_buf()).collect(), ..config }
}

fn names(directory: &ModelDirectory) -> Vec<String> {
    directory.served().into_iter().map(|model| model.name).collect()
}

#[test]
fn directories_are_looked_at_one_level_deep() {
    let home = folder(&["dev/", "a.gguf", "B.SafeTensors", "notes.txt", ".hidden.gguf", ".git/"]);
    fs::create_dir(home.path().join("more")).unwrap();
    fs::write(home.path().join("more/deep.gguf"), "1").unwrap();
    std::os::unix::fs::symlink("nowhere", home.path().join("gone.gguf")).unwrap();
    let directory = ModelDirectory::open(&config(&[home.path()], "")).unwrap();
    assert_eq!(names(&directory), ["B", "a", "demo", "dev"]);
    let [problem] = directory.problems() else { panic!("{:?}", directory.problems()) };
    assert!(problem.contains("gone.gguf is left out"), "{problem}");
    let dev = &directory.served()[3];
    assert_eq!(dev.files_bytes, Bytes(2 + 8));
    assert!(dev.modified_ms > 1_600_000_000_000);
    let path = home.path().join("dev").to_str().unwrap().to_owned();
    assert_eq!(directory.sources()["dev"], ModelSource::of(path));
    assert_eq!(directory.default_model(), DEMO);
    assert!(
        directory.sources()[DEMO].is_empty() && directory.served()[2].files_bytes > Bytes::ZERO
    );
}

#[test]
fn a_name_is_one_models_and_the_others_are_told() {
    let first = folder(&["a.gguf", "a.safetensors", "demo.gguf", "own.gguf"]);
    let second = folder(&["a/", "b.gguf"]);
    let own = first.path().join("b-file.gguf");
    fs::write(&own, "123").unwrap();
    let text = format!("[model.own]\nsource = {:?}\n", own.to_str().unwrap());
    let directory = ModelDirectory::open(&config(&[first.path(), second.path()], &text)).unwrap();
    assert_eq!(names(&directory), ["a", "b", "b-file", "demo", "own"]);
    assert_eq!(directory.sources()["own"], ModelSource::of(own.to_str().unwrap()));
    let a = first.path().join("a.gguf");
    assert_eq!(directory.sources()["a"], ModelSource::of(a.to_str().unwrap()));
    let told = directory.problems().join("\n");
    for left_out in ["a.safetensors", "demo.gguf", "own.gguf", "/a "] {
        assert!(told.contains(left_out), "{left_out}: {told}");
    }
    assert_eq!(directory.problems().len(), 4, "{told}");
    assert!(directory.problems().iter().all(|problem| problem.contains("; hint: ")));
}

#[test]
fn sections_aliases_and_the_default_are_held_against_what_is_there() {
    let home = folder(&["dev/", "ae.safetensors"]);
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let text = format!(
        "default_model = \"d\"\n[aliases]\nd = \"dev\"\nx = \"devv\"\ndev = \"demo\"\n\
         [model.dev]\nkeep_alive = \"-1\"\npriority = \"background\"\npreload = true\n\
         [model.demo]\nsdapi_cfg = \"true\"\n[model.lost]\n\
         [model.gone]\nsource = \"/no/such\"\n\
         [model.mixed]\nsource = \"{} --vae {}\"\n",
        at("dev"),
        at("ae.safetensors"),
    );
    let directory = ModelDirectory::open(&config(&[home.path()], &text)).unwrap();
    assert_eq!(names(&directory), ["ae", "demo", "dev", "mixed"]);
    assert_eq!(directory.default_model(), "dev");
    let model = &directory.served()[2];
    let found = (model.keep_alive, model.class, model.preload);
    assert_eq!(found, (Some(KeepAlive::Always), Some(Class::Background), true));
    assert_eq!(directory.sdapi_cfg(DEMO), SdapiCfg::True);
    assert_eq!(directory.served()[3].files_bytes, Bytes(10 + 4));
    assert_eq!(directory.sources()["mixed"].part(PartFlag::Vae), Some(&*at("ae.safetensors")));
    assert_eq!(directory.aliases().collect::<Vec<_>>(), [("d", "dev"), ("dev", "demo")]);
    assert_eq!(directory.resolve("dev").unwrap(), "dev", "its own name goes first");
    let told = directory.problems().join("\n");
    for problem in [
        "[model.gone]: /no/such: ",
        "[model.lost] has no source",
        "the alias x means devv, which is not there; hint: is dev meant?",
        "the alias dev is a model's own name",
    ] {
        assert!(told.contains(problem), "{problem}: {told}");
    }
    let refused = |text| ModelDirectory::open(&config(&[home.path()], text)).unwrap_err();
    assert!(refused("default_model = \"dve\"").contains("there is no model `dve`; hint: "));
    assert!(refused("[model.demo]\nsource = \"/m\"").contains("hint: give the model another name"));
}

#[test]
fn names_that_nobody_has_get_the_nearest() {
    let home = folder(&["pictures-dev/", "other.gguf"]);
    let directory = ModelDirectory::open(&config(&[home.path()], "")).unwrap();
    let error = directory.resolve("pictures-dv").unwrap_err();
    assert_eq!(error.code, ErrorCode::NoModel);
    assert_eq!(error.message, "there is no model `pictures-dv`; hint: is pictures-dev meant?");
    for name in ["../other.gguf", "other.gguf\0", "", "/etc/passwd", "Demo"] {
        assert!(directory.resolve(name).is_err(), "{name}");
        assert!(directory.lora(name).is_err(), "{name}");
    }
}

#[test]
fn lora_files_have_names_too() {
    let first = folder(&["style.safetensors", "note.txt", "dir/"]);
    let second = folder(&["style.safetensors", "b.safetensors", "c.gguf"]);
    let loras = vec![first.path().into(), second.path().into()];
    let config = ServeConfig { loras, ..config(&[], "") };
    let directory = ModelDirectory::open(&config).unwrap();
    assert_eq!(directory.loras().keys().collect::<Vec<_>>(), ["b", "style"]);
    assert_eq!(directory.lora("style").unwrap(), first.path().join("style.safetensors"));
    assert_eq!(directory.problems().len(), 1);
    let error = directory.lora("stile").unwrap_err();
    assert_eq!(error.message, "there is no LoRA `stile`; hint: is style meant?");
}

#[test]
fn a_change_is_seen_by_names_sizes_and_times() {
    let home = folder(&["a.gguf"]);
    let missing = home.path().join("missing");
    let mut directory = ModelDirectory::open(&config(&[home.path(), &missing], "")).unwrap();
    assert!(directory.problems()[0].contains("cannot read the directory"));
    assert!(!directory.changed() && !directory.rescan());
    let a = home.path().join("a.gguf");
    fs::write(&a, "12345").unwrap();
    assert!(directory.changed() && directory.rescan() && !directory.changed());
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(100);
    let file = fs::File::options().append(true).open(&a).unwrap();
    file.set_modified(old).unwrap();
    assert!(directory.rescan() && !directory.rescan());
    fs::rename(&a, home.path().join("b.gguf")).unwrap();
    assert!(directory.rescan());
    assert_eq!(names(&directory), ["b", "demo"]);
    fs::create_dir(&missing).unwrap();
    assert!(directory.rescan() && directory.problems().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever files there are and whatever is asked for: what is found is at a path of its own.
    #[test]
    fn every_name_leads_to_its_own_file(
        files in prop::collection::btree_set("[a-c.]{1,3}\\.(gguf|safetensors)", 0..6),
        asked in "[a-c./]{0,4}",
    ) {
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let home = folder(&files);
        let directory = ModelDirectory::open(&config(&[home.path()], "")).unwrap();
        for (name, source) in directory.sources().iter().filter(|(name, _)| *name != DEMO) {
            let path = Path::new(source.model.as_deref().unwrap());
            prop_assert_eq!(path.file_stem().unwrap().to_str(), Some(name.as_str()));
            prop_assert_eq!(path.parent(), Some(home.path()));
        }
        match directory.resolve(&asked) {
            Ok(name) => prop_assert_eq!(name, asked),
            Err(error) => prop_assert!(error.message.contains("; hint: ")),
        }
    }
}
