//! The keys of groups and of their sessions.

use treecast_wire::{Authentication, Crcs, GroupId, Keys, MacKey, PayloadKey, SessionId};

/// The key of a group, which its members derive from its token. It does not reveal the token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GroupKey([u8; blake3::KEY_LEN]);

/// Logs must not show a key.
impl std::fmt::Debug for GroupKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("GroupKey(..)")
    }
}

impl GroupKey {
    /// The key of a group with this token (docs/wire.md). An empty token makes a key that everybody
    /// can compute.
    ///
    /// ```
    /// use treecast_proto::{GroupId, GroupKey};
    ///
    /// assert_eq!(GroupKey::new("secret", GroupId(1)), GroupKey::new("secret", GroupId(1)));
    /// assert_ne!(GroupKey::new("secret", GroupId(1)), GroupKey::new("secret", GroupId(2)));
    /// ```
    pub fn new(token: &str, group: GroupId) -> Self {
        let key = blake3::derive_key("Treecast: the key of a group, version 2", token.as_bytes());
        Self(*blake3::keyed_hash(&key, &group.0.to_be_bytes()).as_bytes())
    }

    /// The keys of handshakes.
    pub fn handshake_keys(&self) -> Keys {
        self.derive(b"handshake", &[], Authentication::Header)
    }

    /// The keys of a session.
    pub fn session_keys(&self, session: SessionId, authentication: Authentication) -> Keys {
        self.derive(b"session", &session.0, authentication)
    }

    /// The key with which the applications of a session encrypt what they send.
    pub fn encryption_key(&self, session: SessionId) -> [u8; 32] {
        *blake3::Hasher::new_keyed(&self.0).update(b"encryption").update(&session.0).finalize().as_bytes()
    }

    fn derive(&self, purpose: &[u8], session: &[u8], authentication: Authentication) -> Keys {
        let mut words = [[0; 8]; 6 + PayloadKey::HASH_WORDS];
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(purpose).update(session).finalize_xof().fill(words.as_flattened_mut());
        let [h0, h1, c0, c1, d0, d1, hash @ ..] = words.map(u64::from_le_bytes);
        Keys {
            header: MacKey([h0, h1]),
            control: MacKey([c0, c1]),
            data: PayloadKey { code: MacKey([d0, d1]), hash },
            authentication,
            crcs: Crcs::All,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_session_and_purpose_has_its_own_keys() {
        let group = GroupKey::new("secret", GroupId(1));
        let keys = [
            group.handshake_keys(),
            group.session_keys(SessionId([0; 16]), Authentication::Header),
            group.session_keys(SessionId([1; 16]), Authentication::Header),
            GroupKey::new("other", GroupId(1)).handshake_keys(),
        ];
        let keys: Vec<MacKey> =
            keys.iter().flat_map(|keys| [keys.header, keys.control, keys.data.code]).collect();
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "key {index} is not new");
        }
    }
}
