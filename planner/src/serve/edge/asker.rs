//! Who asks: what the guards found out of a request's token and address.

use std::convert::Infallible;
use std::net::IpAddr;

use axum::extract::FromRequestParts;
use axum::http::Extensions;
use axum::http::request::Parts;

use crate::serve::desk::event::Asker;

/// Characters of a name that a request gives its user; longer ones are cut.
const NAME_CHARACTERS_MAX: usize = 64;

/// A connection's other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its address; `None` for a socket of this host.
    pub address: Option<IpAddr>,
    /// The address that it was reached at, likewise.
    pub local: Option<IpAddr>,
}

impl Peer {
    /// What it is called where nothing better is known.
    pub fn name(&self) -> String {
        match self.address {
            Some(address) => address.to_canonical().to_string(),
            None => "local".to_owned(),
        }
    }
}

/// Who sent a request, for handlers: an argument of this type.
#[derive(Debug, Clone)]
pub struct Caller {
    /// For the desk.
    pub asker: Asker,
    /// Whether its name is a token's, which no field of a request replaces.
    pub by_token: bool,
}

impl Caller {
    /// Who the guards found; they put one into each request that they let through. Without them
    /// nobody may do anything that an administrator may.
    pub fn of(extensions: &Extensions) -> Caller {
        let caller = extensions.get::<Caller>().cloned();
        caller.unwrap_or_else(|| Caller {
            asker: Asker { client: "nobody".to_owned(), admin: false },
            by_token: false,
        })
    }

    /// The asker of a request that calls its user so (OpenAI's `user` and `safety_identifier`):
    /// quotas then count by that name, unless a token has one.
    pub fn named(self, user: Option<&str>) -> Asker {
        let user = user.map(str::trim).filter(|user| !user.is_empty() && !self.by_token);
        match user {
            Some(user) => {
                let client = user.chars().take(NAME_CHARACTERS_MAX).collect();
                Asker { client, ..self.asker }
            }
            None => self.asker,
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Caller, Infallible> {
        Ok(Caller::of(&parts.extensions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(by_token: bool) -> Caller {
        Caller { asker: Asker { client: "own".to_owned(), admin: true }, by_token }
    }

    #[test]
    fn a_request_names_its_user_where_no_token_does() {
        assert_eq!(caller(false).named(Some(" ann ")).client, "ann");
        assert_eq!(caller(false).named(Some(" ")).client, "own");
        assert_eq!(caller(false).named(None).client, "own");
        assert_eq!(caller(true).named(Some("ann")).client, "own");
        assert_eq!(caller(false).named(Some(&"é".repeat(100))).client.chars().count(), 64);
    }

    #[test]
    fn an_address_has_one_name_however_it_is_written() {
        let mapped = "::ffff:192.0.2.1".parse().ok();
        assert_eq!(Peer { address: mapped, local: None }.name(), "192.0.2.1");
        assert_eq!(Peer { address: None, local: None }.name(), "local");
    }
}
