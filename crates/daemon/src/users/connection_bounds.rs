//! How the daemon divides its connections among its users.
//!
//! Each user has some reserved that no other user can take, and so has the administrator (root, and
//! the user that the daemon runs as), who is not counted among the users. Connections beyond these
//! come from a pool that all users have together. A user with subordinate ids (subuid(5)) counts as
//! one user for each id that it uses: where that matters, a policy names its users.

use rustix::process::getuid;

/// The connections that each user has for itself, and the most with those of the pool.
const RESERVED: usize = 16;
const PER_USER_MAX: usize = 256;

/// The most connections of all users, half of them reserved. Fewer descriptors allow fewer.
const CONNECTIONS_MAX: usize = 16_384;

/// The descriptors that a connection takes until the client has received its own two.
const DESCRIPTORS_EACH: u64 = 4;

/// The bounds of a daemon's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionBounds {
    users_max: usize,
    pool_max: usize,
}

impl ConnectionBounds {
    /// The bounds for a process that may have this number of descriptors. At most half of them are
    /// kept for `others`.
    pub fn new(descriptors_max: u64, others: u64) -> Self {
        let descriptors = (descriptors_max - others.min(descriptors_max / 2)) / DESCRIPTORS_EACH;
        let connections = usize::try_from(descriptors).unwrap_or(usize::MAX).min(CONNECTIONS_MAX);
        let reserved = connections / 2;
        // One reserve is the administrator's.
        let users_max = (reserved / RESERVED).saturating_sub(1).max(1);
        Self { users_max, pool_max: connections - reserved }
    }

    /// Whether a user may have another connection. `counts` has the connections of each known user,
    /// with 0 for one without any that still has memory.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(self, user: u32, counts: impl Iterator<Item = (u32, usize)> + Clone) -> Result<(), String> {
        let own = counts.clone().find(|(known, _)| *known == user).map(|(_, count)| count);
        let others = counts.clone().filter(|(known, _)| *known != user && !is_administrator(*known)).count();
        if own.is_none() && !is_administrator(user) && others >= self.users_max {
            return Err(format!(
                "{others} users have connections or memory, and none are reserved for another"
            ));
        }
        let own = own.unwrap_or(0);
        if own >= PER_USER_MAX {
            return Err(format!("the user has {own} connections, and may have no more"));
        }
        let pooled: usize = counts.map(|(_, count)| count.saturating_sub(RESERVED)).sum();
        if own >= RESERVED && pooled >= self.pool_max {
            return Err(format!(
                "the user has {own} connections, and all {} beyond those that are reserved for users are taken",
                self.pool_max
            ));
        }
        Ok(())
    }
}

/// Whether it is root, or the user that the daemon runs as.
fn is_administrator(user: u32) -> bool {
    user == 0 || user == getuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_is_free_whatever_the_others_have() {
        let bounds = ConnectionBounds::new(65_536, 8_192);
        assert_eq!(bounds, ConnectionBounds { users_max: 447, pool_max: 7_168 });
        // Users that take all that they are given.
        let mut counts: Vec<(u32, usize)> = Vec::new();
        for user in 70_000..70_000 + 447 {
            counts.push((user, 0));
            while bounds.admit(user, counts.iter().copied()).is_ok() {
                counts.last_mut().unwrap().1 += 1;
            }
        }
        assert_eq!(counts[0].1, PER_USER_MAX);
        assert!(counts.iter().all(|(_, count)| *count >= RESERVED));
        let total: usize = counts.iter().map(|(_, count)| count).sum();
        assert_eq!(total, 447 * RESERVED + 7_168);
        assert!(bounds.admit(71_000, counts.iter().copied()).is_err());
        for own in 0..RESERVED {
            let with_root = counts.iter().copied().chain([(0, own)]);
            assert_eq!(bounds.admit(0, with_root), Ok(()));
        }
    }

    #[test]
    fn few_descriptors_serve_few_users() {
        assert_eq!(ConnectionBounds::new(1_024, 8_192), ConnectionBounds { users_max: 3, pool_max: 64 });
        assert_eq!(ConnectionBounds::new(64, 8_192).users_max, 1);
    }
}
