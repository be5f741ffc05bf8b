//! Tokens as clients send them, guesses, and files that are none.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use axum::http::HeaderName;

use super::*;
use crate::serve::edge::limits::WRONG_TOKENS_MAX;

const ANN: &str = "0123456789abcdef0123456789abcdef";
const BOB: &str = "fedcba9876543210fedcba9876543210";

fn guardian() -> Guardian {
    let text = format!("# who\n\nann:{ANN}:admin\nbob:{BOB}\n");
    Guardian::new(Some(Tokens::parse(&text).unwrap()))
}

fn peer(address: &str) -> Peer {
    Peer { address: address.parse().ok(), local: None }
}

fn with(name: &'static str, value: &str) -> HeaderMap {
    HeaderMap::from_iter([(HeaderName::from_static(name), value.parse().unwrap())])
}

fn who(guardian: &Guardian, name: &'static str, value: &str) -> Result<(String, bool), u16> {
    let admitted = guardian.admit(&with(name, value), &peer("192.0.2.1"), Instant::now());
    admitted
        .map(|caller| (caller.asker.client, caller.asker.admin))
        .map_err(|error| error.status.as_u16())
}

#[test]
fn a_token_is_taken_in_each_way() {
    let guardian = guardian();
    let basic = format!("Basic {}", base64::encode(format!("any:{BOB}")));
    for (name, value) in [
        ("authorization", format!("Bearer {BOB}")),
        ("authorization", format!("bearer  {BOB}")),
        ("authorization", basic),
        ("api-key", BOB.to_owned()),
        ("x-api-key", BOB.to_owned()),
    ] {
        assert_eq!(who(&guardian, name, &value), Ok(("bob".to_owned(), false)), "{name}: {value}");
    }
    assert_eq!(who(&guardian, "x-api-key", ANN), Ok(("ann".to_owned(), true)));
}

#[test]
fn a_cookie_logs_in_and_is_no_token() {
    let guardian = guardian();
    let cookie = guardian.login(ANN, &peer("192.0.2.1"), Instant::now()).unwrap();
    let line = format!("other=1; {LOGIN_COOKIE}={cookie}");
    assert_eq!(who(&guardian, "cookie", &line), Ok(("ann".to_owned(), true)));
    assert_eq!(who(&guardian, "x-api-key", &cookie), Err(401));
    assert_eq!(who(&guardian, "cookie", &format!("{LOGIN_COOKIE}={ANN}")), Err(401));
    assert!(guardian.login("wrong", &peer("192.0.2.1"), Instant::now()).is_err());
}

#[test]
fn an_address_that_guesses_is_refused_for_a_minute() {
    let guardian = guardian();
    let start = Instant::now();
    let ask = |address: &str, token: &str, at: Instant| {
        let admitted = guardian.admit(&with("x-api-key", token), &peer(address), at);
        admitted.map_err(|error| (error.status.as_u16(), error.retry_after_s))
    };
    for _ in 0..WRONG_TOKENS_MAX {
        assert_eq!(ask("192.0.2.1", "wrong", start).unwrap_err(), (401, None));
    }
    let refused = ask("192.0.2.1", ANN, start + Duration::from_secs(20)).unwrap_err();
    assert_eq!(refused, (429, Some(40)));
    assert!(ask("192.0.2.2", ANN, start).is_ok(), "another address");
    assert!(ask("192.0.2.1", ANN, start + Duration::from_secs(61)).is_ok());
}

#[test]
fn without_a_token_nothing_is_guessed_and_without_tokens_all_may() {
    let guardian = guardian();
    for _ in 0..2 * WRONG_TOKENS_MAX {
        let admitted = guardian.admit(&HeaderMap::new(), &peer("192.0.2.1"), Instant::now());
        assert_eq!(admitted.unwrap_err().status, StatusCode::UNAUTHORIZED);
    }
    let open = Guardian::new(None);
    assert_eq!(who(&open, "authorization", "Bearer dummy"), Ok(("192.0.2.1".to_owned(), true)));
    assert_eq!(who(&open, "authorization", ""), Ok(("192.0.2.1".to_owned(), true)));
}

#[test]
fn a_line_is_a_name_and_a_long_token() {
    for (text, why) in [
        (format!("ann:{ANN}\nann:{BOB}"), "used twice"),
        ("ann:short".to_owned(), "less than 32"),
        (ANN.to_owned(), "no colon"),
        (format!("a b:{ANN}"), "its name"),
        (format!(":{ANN}"), "its name"),
        (format!("ann:{ANN}:other"), "colons"),
    ] {
        let error = Tokens::parse(&text).err().unwrap_or_else(|| panic!("{text}"));
        assert!(error.to_string().contains(why), "{error}");
        assert!(!error.to_string().contains(ANN), "a token is told: {error}");
    }
}

#[test]
fn only_its_user_may_read_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    fs::write(&path, new_token("ann").unwrap()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(Tokens::read(&path), Err(TokenError::Public(_))));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(Tokens::read(&path).is_ok());
    fs::write(&path, "# nothing\n").unwrap();
    assert!(matches!(Tokens::read(&path), Err(TokenError::Empty(_))));
    assert!(matches!(Tokens::read(&folder.path().join("no")), Err(TokenError::Read { .. })));
}

#[test]
fn new_tokens_differ_and_can_be_read() {
    let [one, two] = [new_token("ann").unwrap(), new_token("ann").unwrap()];
    assert_ne!(one, two);
    assert_eq!(Tokens::parse(&one).unwrap().0[0].name, "ann");
    assert!(new_token("a:b").is_err() && new_token("").is_err());
}
