//! Random numbers of the system.

use std::io;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Random bytes.
///
/// # Errors
/// The system's, if it has none.
pub fn bytes<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    let mut filled = 0;
    while filled < COUNT {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

/// 128 random bits in two words.
///
/// # Errors
/// Those of [`bytes`].
pub fn words() -> io::Result<[u64; 2]> {
    let bytes = bytes::<16>()?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok([u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1])])
}

/// 64 random bits.
///
/// # Errors
/// Those of [`bytes`].
pub fn word() -> io::Result<u64> {
    Ok(u64::from_ne_bytes(bytes()?))
}

/// Draws a token that cannot be guessed: 128 random bits, in hexadecimal.
///
/// # Errors
/// The system's, if it has no random numbers.
///
/// ```
/// let token = treecast_node::draw_token()?;
/// assert_eq!(token.len(), 32);
/// assert_ne!(token, treecast_node::draw_token()?);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn draw_token() -> io::Result<String> {
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes()?)))
}
