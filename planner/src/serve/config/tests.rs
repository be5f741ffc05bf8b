//! A configuration is read whole, and each mistake is told with its line and what may be meant.

use proptest::prelude::*;
use protocol::PartFlag;

use super::*;

/// Every key that there is.
const FULL: &str = r#"
listen = "unix:/run/berth.sock"
models = ["/srv/models", "/srv/more"]
loras = ["/srv/loras"]
default_model = "dev"
public_url = "https://pictures.example.org/"
allowed_hosts = ["Pictures.example.org"]
allowed_origins = ["https://app.example.org"]
token_file = "/etc/berth/tokens"
keep_alive = "5m"
several_loaded = false
join_jobs = false
queue_max = 8
room_wait = "30s"
drain = "1m"
keep_jobs = 10
keep_bytes = "1GiB"
min_free = "64MiB"
conditioning_cache = "0B"

[quota]
queued = 4
running = 3
queued_seconds = 60

[openai]
response_format = "url"
quality = { high = 2, low = 0.25 }

[policy]
max_vram = "8GiB"
margin = "1"

[aliases]
"dall-e-3" = "dev"

[model.dev]
source = "/m/dev --vae /m/ae.safetensors"
keep_alive = "-1"
plan_for = ["1024x1024", "1344x768"]
preload = true
priority = "background"
sdapi_cfg = "true"
"#;

fn error(text: &str) -> String {
    ConfigLayer::parse(text, "serve.toml").expect_err(text).to_string()
}

#[test]
fn every_key_is_read() {
    let config = ConfigLayer::parse(FULL, "serve.toml").unwrap().finish().unwrap();
    let strings = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let source = ModelSource::of("/m/dev").with(PartFlag::Vae, "/m/ae.safetensors");
    let model = ModelConfig {
        source: Some(source),
        keep_alive: Some(KeepAlive::Always),
        plan_for: vec![[1024, 1024], [1344, 768]],
        preload: true,
        priority: Some(Class::Background),
        sdapi_cfg: SdapiCfg::True,
    };
    let expected = ServeConfig {
        listen: ListenAddress::Unix("/run/berth.sock".into()),
        models: vec!["/srv/models".into(), "/srv/more".into()],
        loras: vec!["/srv/loras".into()],
        default_model: Some("dev".to_owned()),
        public_url: Some("https://pictures.example.org".to_owned()),
        allowed_hosts: strings(&["pictures.example.org"]),
        allowed_origins: strings(&["https://app.example.org"]),
        token_file: Some("/etc/berth/tokens".into()),
        keep_alive: KeepAlive::Ms(300_000),
        several_loaded: false,
        join_jobs: false,
        queue_max: 8,
        room_wait_ms: 30_000,
        drain_ms: 60_000,
        keep_jobs: 10,
        keep_bytes: Bytes::gib(1),
        min_free: Bytes::mib(64),
        conditioning_cache: Bytes::ZERO,
        quota: ClientQuota { queued: 4, running: 3, queued_seconds: 60 },
        openai: OpenAiConfig {
            response_format: ResponseFormat::Url,
            quality: BTreeMap::from([("high".to_owned(), 2.0), ("low".to_owned(), 0.25)]),
        },
        policy: PolicyText {
            max_vram: Some("8GiB".to_owned()),
            margin: Some("1".to_owned()),
            ..PolicyText::default()
        },
        aliases: [("dall-e-3".to_owned(), "dev".to_owned())].into(),
        model: [("dev".to_owned(), model)].into(),
    };
    assert_eq!(config, expected);
}

#[test]
fn nothing_said_is_the_defaults() {
    let empty = ConfigLayer::parse("", "serve.toml").unwrap();
    assert_eq!(empty, ConfigLayer::default());
    let config = empty.finish().unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8642");
    let numbers = (config.queue_max, config.room_wait_ms, config.drain_ms, config.keep_jobs);
    assert_eq!(numbers, (64, 60_000, 120_000, 1000));
    assert_eq!((config.keep_alive, config.keep_bytes), (KEEP_ALIVE, Bytes::gib(10)));
    assert_eq!(config.min_free, Bytes::mib(512));
    assert_eq!(config.conditioning_cache, Bytes::mib(256));
    let quota = ClientQuota { queued: 16, running: 2, queued_seconds: 600 };
    assert_eq!(config.quota, quota);
    let none = "default_model = \"\"\npublic_url = \"\"\ntoken_file = \"\"\nallowed_hosts = []\n";
    assert_eq!(ConfigLayer::parse(none, "x").unwrap().finish().unwrap(), config);
}

#[test]
fn an_unknown_key_is_told_with_the_one_that_may_be_meant() {
    for (text, expected) in [
        (
            "keepalive = \"1m\"",
            "serve.toml:1: `keepalive`: there is no key `keepalive`; hint: is keep_alive meant?",
        ),
        (
            "[openai]\nresponse_format = \"b64\"",
            "serve.toml:2: `response_format`: there is no value `b64`; hint: is b64_json meant?",
        ),
        (
            "[openai]\nquality = { hihg = 2 }",
            "no quality `hihg`; hint: there are low, medium, high, xhigh, max",
        ),
        ("[openai.quality]\nlow = 0.0", "low = 0 is not above 0, up to 100"),
        (
            "\n[quota]\nqeued = 3",
            "serve.toml:3: `qeued`: there is no key `qeued`; hint: is queued meant?",
        ),
        ("[model.a]\nsauce = \"/m\"", "`sauce`: there is no key `sauce`; hint: is source meant?"),
        ("[policy]\nmax_vrm = \"8\"", "there is no key `max_vrm`; hint: is max_vram meant?"),
        ("[model.a]\npriority = \"back\"", "there is no value `back`; hint: is background meant?"),
        ("[fleet]\nurl = \"x\"", "there is no key `fleet`; hint: "),
        ("no_token = true", "there is no key `no_token`; hint: "),
        ("[models.dev]\nsource = \"/m\"", "hint: a section for one model is called [model.NAME]"),
    ] {
        let error = error(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_wrong_value_is_told_with_its_line() {
    for (text, expected) in [
        ("listen = \"8642\"", "serve.toml:1: `listen`: `8642` is not an address; hint: "),
        ("\nqueue_max = 0", "serve.toml:2: `queue_max`: 0 is not within 1 to 1000000"),
        ("queue_max = -5", "-5 is not within"),
        ("queue_max = \"5\"", "serve.toml:1: `queue_max`: invalid type"),
        ("drain = \"60\"", "`60` is not a time; hint: "),
        ("keep_alive = \"-2\"", "`-2` is not a time; hint: "),
        ("keep_bytes = \"0B\"", "a size of zero; hint: "),
        ("keep_bytes = \"5\"", "`5` is no size; hint: "),
        ("conditioning_cache = \"much\"", "`much` is no size; hint: "),
        ("models = [\"models\"]", "`models` does not begin at the root; hint: "),
        ("token_file = \"tokens\"", "`tokens` does not begin at the root; hint: "),
        ("public_url = \"here\"", "`here` is not a URL; hint: "),
        ("allowed_hosts = [\"a:1\"]", "`a:1` is not a host's name; hint: "),
        ("allowed_origins = [\"a\"]", "`a` is not an origin; hint: "),
        ("[quota]\nqueued = 0", "serve.toml:2: `queued`: 0 is not within"),
        ("[policy]\nmax_vram = \"much\"", "`much` is not an amount of memory; hint: "),
        ("[model.a]\nsource = \"m\"", "`m` does not begin at the root; hint: "),
        ("[model.a]\nsource = \"/m --vae v\"", "`v` does not begin at the root; hint: "),
        ("[model.a]\nsource = \"/m --vae /a --vae /b\"", "--vae stands twice; hint: "),
        ("[model.a]\nsource = \"\"", "hint: "),
        ("[model.\" a\"]\n", "` a` is not a name; hint: "),
        ("[aliases]\na = \"\"", "`` is not a name; hint: "),
        ("listen = ", "serve.toml:1: "),
    ] {
        let error = error(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn flags_go_over_the_file_key_by_key() {
    let file = ConfigLayer::parse(FULL, "serve.toml").unwrap();
    let flags = ConfigLayer {
        listen: Some(ListenAddress::standard()),
        queue_max: Some(3),
        policy: PolicyText { max_ram: Some("4GiB".to_owned()), ..PolicyText::default() },
        aliases: [("b".to_owned(), "c".to_owned())].into(),
        ..ConfigLayer::default()
    };
    let config = flags.over(file).finish().unwrap();
    assert_eq!((config.listen, config.queue_max), (ListenAddress::standard(), 3));
    assert_eq!((config.keep_jobs, config.model.len(), config.aliases.len()), (10, 1, 2));
    let PolicyText { max_ram, max_vram, .. } = config.policy;
    assert_eq!((max_ram.as_deref(), max_vram.as_deref()), (Some("4GiB"), Some("8GiB")));
}

#[test]
fn what_would_be_open_to_all_must_be_said() {
    let open = "listen = \"0.0.0.0:8642\"\n";
    let layer = |text: &str| ConfigLayer::parse(text, "serve.toml").unwrap();
    let refused = |layer: ConfigLayer| layer.finish().unwrap_err().to_string();
    assert!(refused(layer(open)).contains("hint: set token_file, or say --no-token"));
    assert!(layer(&format!("{open}token_file = \"/t\"")).finish().is_ok());
    assert!(ConfigLayer { no_token: true, ..layer(open) }.finish().is_ok());
    let both = ConfigLayer { no_token: true, ..layer("token_file = \"/t\"") };
    assert!(refused(both).contains("hint: leave one of them out"));
    let every = "allowed_origins = [\"*\"]\n";
    assert!(layer(every).finish().is_ok());
    assert!(
        refused(layer(&format!("{every}token_file = \"/t\""))).contains("hint: name the origins")
    );
}

#[test]
fn a_file_that_is_named_must_be_there_and_be_one() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("serve.toml");
    let load = || ConfigLayer::load(Some(&path));
    assert!(load().unwrap_err().to_string().contains("hint: --config names a TOML file"));
    std::fs::write(&path, "queue_max = 5").unwrap();
    assert_eq!(load().unwrap().queue_max, Some(5));
    std::fs::write(&path, vec![b'#'; FILE_BYTES_MAX.0 as usize + 1]).unwrap();
    assert!(load().unwrap_err().to_string().contains("it is larger than 1.00 MiB"));
    std::fs::write(&path, [0xff]).unwrap();
    assert!(load().is_err());
    assert!(ConfigLayer::load(Some(home.path())).is_err());
}

proptest! {
    /// Whatever stands in the file, it is read or refused.
    #[test]
    fn damage_ends_in_an_answer(at in 0..FULL.len(), byte: u8, cut in 0..FULL.len()) {
        let mut bytes = FULL.as_bytes().to_vec();
        bytes[at] = byte;
        for text in [String::from_utf8_lossy(&bytes), String::from_utf8_lossy(&bytes[..cut])] {
            if let Err(error) = ConfigLayer::parse(&text, "x") {
                let told = error.to_string();
                prop_assert!(told.starts_with("x:"), "{}", told);
            }
        }
    }
}
