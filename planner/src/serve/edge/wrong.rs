//! How often each address sent a token that nobody has.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use super::limits::{WRONG_ADDRESSES_MAX, WRONG_TOKENS_MAX};

/// For so long wrong tokens count, from the first.
const WINDOW: Duration = Duration::from_secs(60);

/// Bits of an IPv6 address that a household or a host has: those before are one guesser.
const HOST_BITS: u32 = 64;

/// Wrong tokens by address.
#[derive(Default)]
pub struct WrongTokens(HashMap<Option<IpAddr>, Guesses>);

struct Guesses {
    first: Instant,
    count: u32,
}

impl WrongTokens {
    /// For how many seconds an address is refused; `None` where it may try.
    pub fn refused_s(&self, address: Option<IpAddr>, now: Instant) -> Option<u64> {
        let guesses = self.0.get(&guesser(address))?;
        let left = WINDOW.checked_sub(now.saturating_duration_since(guesses.first))?;
        (guesses.count >= WRONG_TOKENS_MAX).then(|| left.as_secs().max(1))
    }

    /// Counts one.
    pub fn add(&mut self, address: Option<IpAddr>, now: Instant) {
        let address = guesser(address);
        if !self.0.contains_key(&address) && self.0.len() >= WRONG_ADDRESSES_MAX {
            self.make_room(now);
        }
        let guesses = self.0.entry(address).or_insert(Guesses { first: now, count: 0 });
        if now.saturating_duration_since(guesses.first) > WINDOW {
            *guesses = Guesses { first: now, count: 0 };
        }
        guesses.count += 1;
    }

    fn make_room(&mut self, now: Instant) {
        self.0.retain(|_, guesses| now.saturating_duration_since(guesses.first) <= WINDOW);
        if self.0.len() >= WRONG_ADDRESSES_MAX {
            let oldest = self.0.iter().min_by_key(|(_, guesses)| guesses.first);
            if let Some(address) = oldest.map(|(address, _)| *address) {
                self.0.remove(&address);
            }
        }
    }
}

/// The address, or the network of one that has many to choose from.
fn guesser(address: Option<IpAddr>) -> Option<IpAddr> {
    address.map(|address| match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> HOST_BITS << HOST_BITS)),
        v4 => v4,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_counts_as_one_and_the_number_of_addresses_is_bounded() {
        let mut wrong = WrongTokens::default();
        let now = Instant::now();
        let v6 = |host: u128| Some(IpAddr::V6(Ipv6Addr::from_bits((1 << 100) + host)));
        for host in 0..u128::from(WRONG_TOKENS_MAX) {
            wrong.add(v6(host), now);
        }
        assert_eq!(wrong.refused_s(v6(99), now), Some(60));
        for index in 0..2 * WRONG_ADDRESSES_MAX as u32 {
            wrong.add(Some(IpAddr::V4(index.into())), now);
        }
        assert_eq!(wrong.0.len(), WRONG_ADDRESSES_MAX);
    }
}
