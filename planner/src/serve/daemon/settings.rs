//! From the operator's configuration to what the desk and the edge go by.

use std::sync::Arc;

use super::super::catalog::Catalog;
use super::super::config::{ListenAddress, ResponseFormat, SdapiCfg, ServeConfig};
use super::super::desk::config::DeskConfig;
use super::super::desk::job::{ErrorCode, JobError, KeepAlive};
use super::super::edge::config::{EdgeAddress, EdgeConfig};
use super::super::edge::limits::EdgeLimits;
use super::super::edge::settings::{EdgeModel, EdgeSettings};
use super::super::files::PictureFiles;
use super::super::metrics::Metrics;
use super::super::models::ModelDirectory;
use super::super::shared::ServedHost;
use super::super::store::RecordReader;

/// The environment variable by which systemd says whom it hands sockets to: sd_listen_fds(3).
const LISTEN_PID: &str = "LISTEN_PID";

/// What the desk holds jobs, clients and pictures against.
pub fn desk_config(config: &ServeConfig) -> DeskConfig {
    DeskConfig {
        queue_max: config.queue_max,
        several_loaded: config.several_loaded,
        join_jobs: config.join_jobs,
        keep_alive_ms: match config.keep_alive {
            KeepAlive::Ms(ms) => Some(ms),
            KeepAlive::Always => None,
        },
        room_wait_ms: config.room_wait_ms,
        drain_ms: config.drain_ms,
        client_queued_max: config.quota.queued as usize,
        client_running_max: config.quota.running as usize,
        client_queued_s_max: f64::from(config.quota.queued_seconds),
        keep_jobs: config.keep_jobs,
        keep_bytes: config.keep_bytes.0,
        min_free: config.min_free,
    }
}

/// What the edge is started with.
pub fn edge_config(
    config: &ServeConfig,
    no_token: bool,
    files: &PictureFiles,
    records: RecordReader,
    catalog: &Catalog,
    metrics: &Arc<Metrics>,
) -> EdgeConfig {
    let own = std::process::id().to_string();
    let listen = match &config.listen {
        _ if std::env::var(LISTEN_PID).is_ok_and(|pid| pid == own) => EdgeAddress::Handed,
        ListenAddress::Tcp(address) => EdgeAddress::Tcp(*address),
        ListenAddress::Unix(path) => EdgeAddress::Unix(path.clone()),
    };
    let (inputs, files, catalog) = (files.clone(), files.clone(), catalog.clone());
    EdgeConfig {
        listen,
        token_file: config.token_file.clone(),
        no_token,
        allowed_hosts: config.allowed_hosts.clone(),
        allowed_origins: config.allowed_origins.clone(),
        inputs: Arc::new(move |bytes| inputs.keep_picture(bytes)),
        pictures: Arc::new(move |picture| files.path(picture)),
        records: Arc::new(move |id| {
            records.read(id).map_err(|because| JobError::new(ErrorCode::Store, because))
        }),
        rescan: Arc::new(move || Ok(catalog.rescan())),
        metrics: Arc::clone(metrics),
        // Told with the models.
        settings: EdgeSettings::default(),
        limits: EdgeLimits::default(),
    }
}

/// What requests are read by.
pub fn edge_settings(
    config: &ServeConfig,
    models: &ModelDirectory,
    shared: &ServedHost,
) -> EdgeSettings {
    let served = models.served().into_iter().map(|model| {
        let edge_model = EdgeModel {
            description: shared.description_of(&model.name),
            class: model.class,
            sdapi_cfg: models.sdapi_cfg(&model.name) == SdapiCfg::True,
        };
        (model.name, edge_model)
    });
    let aliases = models.aliases().map(|(alias, model)| (alias.to_owned(), model.to_owned()));
    EdgeSettings {
        default_model: models.default_model().to_owned(),
        aliases: aliases.collect(),
        models: served.collect(),
        loras: models.loras().clone(),
        public_url: config.public_url.clone(),
        openai_as_url: config.openai.response_format == ResponseFormat::Url,
        quality: config.openai.quality.clone(),
    }
}
