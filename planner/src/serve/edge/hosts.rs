//! By which names this server may be called, and by pages of which origins.
//!
//! A page of another host can point its own name at this one (DNS rebinding) and would then be of
//! the same origin: so the name itself must be known. With a known name, a page may ask that came
//! from the same name, or whose origin is allowed by the configuration.

use std::net::{IpAddr, Ipv6Addr};

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};

use super::asker::Peer;
use super::errors::EdgeError;

/// How browsers tell where a request comes from (W3C, Fetch Metadata).
const FETCH_SITE: &str = "sec-fetch-site";

/// Allows pages of all origins.
const ANY: &str = "*";

/// What is allowed beside this host's own names.
#[derive(Debug, Clone, Default)]
pub struct HostRules {
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl HostRules {
    /// Rules with these names and origins, in letters of either case.
    pub fn new(hosts: &[String], origins: &[String]) -> HostRules {
        let origin = |text: &String| text.trim_end_matches('/').to_ascii_lowercase();
        HostRules {
            hosts: hosts.iter().map(|host| name_of(host).to_owned()).collect(),
            origins: origins.iter().map(origin).collect(),
        }
    }

    /// Whether pages of all origins may ask.
    pub fn allows_any_origin(&self) -> bool {
        self.origins.iter().any(|origin| origin == ANY)
    }

    /// Whether a request may be answered; then the origin that is to be told so, if it is another.
    ///
    /// # Errors
    /// 403, for its host or for its origin.
    pub fn check(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        peer: &Peer,
    ) -> Result<Option<HeaderValue>, EdgeError> {
        let host = self.host(uri, headers, peer)?;
        let Some(origin) = headers.get(ORIGIN) else {
            return match may_change(method) && is_cross_site(headers) {
                true => Err(bad_origin("a page of another site")),
                false => Ok(None),
            };
        };
        let text = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        if self.allows_any_origin() || self.origins.contains(&text) {
            return Ok(Some(origin.clone()));
        }
        match text.split_once("://").is_some_and(|(_, of)| same_host(of, &host)) {
            true => Ok(None),
            false => Err(bad_origin(&text.chars().take(80).collect::<String>())),
        }
    }

    /// The name that a request calls this server by, in small letters.
    fn host(&self, uri: &Uri, headers: &HeaderMap, peer: &Peer) -> Result<String, EdgeError> {
        let header = headers.get(HOST).map(|host| host.to_str().unwrap_or_default());
        let host = uri.authority().map(|host| host.as_str()).or(header).unwrap_or_default();
        let host = host.to_ascii_lowercase();
        // With two names, whoever stands before this server may have gone by the other.
        let is_one = headers.get_all(HOST).iter().count() <= 1;
        // No page of a browser reaches a socket in the file system.
        if is_one && (peer.address.is_none() || self.knows(name_of(&host), peer)) {
            return Ok(host);
        }
        let message = format!(
            "this server is not called {:?}; hint: add the name to allowed_hosts",
            host.chars().take(80).collect::<String>()
        );
        Err(EdgeError::new(StatusCode::FORBIDDEN, "bad_host", message))
    }

    fn knows(&self, name: &str, peer: &Peer) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        if let Some(address) = literal(name) {
            let reached = peer.local.is_some_and(|local| local.to_canonical() == address);
            return address.is_loopback() || reached || self.hosts.iter().any(|host| host == name);
        }
        let is_local = name == "localhost" || name.ends_with(".localhost");
        is_local || self.hosts.iter().any(|host| host.eq_ignore_ascii_case(name))
    }
}

/// What answers hold for pages of another origin.
pub fn cors(headers: &mut HeaderMap, origin: HeaderValue) {
    for (name, value) in [
        ("access-control-allow-origin", origin),
        ("access-control-allow-methods", HeaderValue::from_static("GET, POST, PATCH, DELETE")),
        ("access-control-allow-headers", HeaderValue::from_static(ALLOWED_HEADERS)),
        ("access-control-expose-headers", HeaderValue::from_static(EXPOSED_HEADERS)),
        ("access-control-max-age", HeaderValue::from_static("600")),
    ] {
        headers.insert(name, value);
    }
    headers.append("vary", HeaderValue::from_static("Origin"));
}

const ALLOWED_HEADERS: &str =
    "authorization, content-type, idempotency-key, last-event-id, api-key, x-api-key, traceparent";
const EXPOSED_HEADERS: &str = "x-request-id, location, retry-after, berth-substituted";

fn bad_origin(origin: &str) -> EdgeError {
    let message =
        format!("{origin} may not ask this server; hint: add its origin to allowed_origins");
    EdgeError::new(StatusCode::FORBIDDEN, "bad_origin", message)
}

fn may_change(method: &Method) -> bool {
    ![Method::GET, Method::HEAD, Method::OPTIONS].contains(method)
}

fn is_cross_site(headers: &HeaderMap) -> bool {
    let site = headers.get(FETCH_SITE).and_then(|site| site.to_str().ok());
    site.is_some_and(|site| site == "cross-site" || site == "same-site")
}

/// Whether two names with ports are the same, where a scheme's own port may be left out.
fn same_host(a: &str, b: &str) -> bool {
    let without = |text: &str| {
        let text = text.strip_suffix(":80").or_else(|| text.strip_suffix(":443")).unwrap_or(text);
        text.to_owned()
    };
    !a.is_empty() && without(a) == without(b)
}

/// A host without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            // In brackets stands an address of IPv6; without them its colons are no ports.
            if name.contains(':') && !name.ends_with(']') { host } else { name }
        }
        _ => host,
    }
}

/// An address as it stands in a URL.
fn literal(name: &str) -> Option<IpAddr> {
    match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(v6) => v6.parse::<Ipv6Addr>().ok().map(|v6| IpAddr::V6(v6).to_canonical()),
        None => name.parse::<IpAddr>().ok().map(|address| address.to_canonical()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(origins: &[&str]) -> HostRules {
        let own = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        HostRules::new(&own(&["pictures.example"]), &own(origins))
    }

    fn check(
        rules: &HostRules,
        method: Method,
        pairs: &[(&'static str, &str)],
    ) -> Result<Option<String>, &'static str> {
        let pairs = pairs.iter().map(|(name, value)| {
            (axum::http::HeaderName::from_static(name), value.parse().unwrap())
        });
        let address = "192.0.2.9".parse().ok();
        let peer = Peer { address, local: "192.0.2.1".parse().ok() };
        let checked = rules.check(&method, &Uri::from_static("/"), &pairs.collect(), &peer);
        checked
            .map(|origin| origin.map(|origin| origin.to_str().unwrap().to_owned()))
            .map_err(|error| error.code)
    }

    #[test]
    fn the_server_answers_to_its_own_names_only() {
        for host in [
            "localhost",
            "LocalHost:8642",
            "berth.localhost",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]:8642",
            "192.0.2.1:8642",
            "pictures.example",
            "Pictures.Example:443",
            "localhost.",
        ] {
            assert_eq!(check(&rules(&[]), Method::GET, &[("host", host)]), Ok(None), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example", "192.0.2.2", "[::2]", "::1:x"] {
            let got = check(&rules(&[]), Method::GET, &[("host", host)]);
            assert_eq!(got, Err("bad_host"), "{host}");
        }
        assert_eq!(check(&rules(&[]), Method::GET, &[]), Err("bad_host"));
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(check(&rules(&[]), Method::GET, &two), Err("bad_host"));
    }

    #[test]
    fn a_page_asks_from_the_same_name_or_an_allowed_origin() {
        let host = ("host", "localhost:8642");
        let from =
            |rules: &HostRules, origin| check(rules, Method::POST, &[host, ("origin", origin)]);
        let own = rules(&[]);
        assert_eq!(from(&own, "http://localhost:8642"), Ok(None));
        for origin in ["http://evil.example", "null", "http://localhost:1", "", "http://"] {
            assert_eq!(from(&own, origin), Err("bad_origin"), "{origin}");
        }
        let allowing = rules(&["https://App.example/"]);
        let app = "https://app.example";
        assert_eq!(from(&allowing, app), Ok(Some(app.to_owned())));
        assert_eq!(from(&allowing, "https://other.example"), Err("bad_origin"));
        assert_eq!(from(&rules(&["*"]), "null"), Ok(Some("null".to_owned())));
        let both = [("host", "pictures.example"), ("origin", "https://pictures.example")];
        assert_eq!(check(&own, Method::POST, &both), Ok(None), "behind a proxy with TLS");
    }

    #[test]
    fn a_page_that_hides_its_origin_may_not_change_anything() {
        let hidden = [("host", "localhost"), ("sec-fetch-site", "cross-site")];
        assert_eq!(check(&rules(&[]), Method::POST, &hidden), Err("bad_origin"));
        assert_eq!(check(&rules(&[]), Method::GET, &hidden), Ok(None));
    }
}
