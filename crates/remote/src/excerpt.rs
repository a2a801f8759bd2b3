/// The most bytes of an excerpt, without the note that it was cut.
const BYTES_MAX: usize = 2_000;

/// Returns the last lines of an output for an error message: at most `lines_max` that are not
/// blank, separated by semicolons. Only the last 2,000 bytes of them are kept, after a note that
/// the beginning was cut. Bytes that are not UTF-8 are replaced.
///
/// ```
/// use treecast_remote::excerpt;
///
/// assert_eq!(excerpt(b"Welcome\n\nno space left\ngiving up\n", 2), "no space left; giving up");
/// assert!(excerpt(&[b'x'; 3_000], 1).starts_with("[1000 bytes cut] xxx"));
/// ```
pub fn excerpt(output: &[u8], lines_max: usize) -> String {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let joined = lines[lines.len().saturating_sub(lines_max)..].join("; ");
    let cut = (joined.len().saturating_sub(BYTES_MAX)..=joined.len()).find(|&at| joined.is_char_boundary(at));
    match cut {
        None | Some(0) => joined,
        Some(cut) => format!("[{cut} bytes cut] {}", &joined[cut..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_one_line() {
        assert_eq!(excerpt(b"one\n\n two\nthree\nfour\nfive\n", 4), "two; three; four; five");
        assert_eq!(excerpt(b"one\ntwo\n \n", 1), "two");
        assert_eq!(excerpt(b"", 4), "");
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        assert_eq!(excerpt(&[b'x'; BYTES_MAX], 1), "x".repeat(BYTES_MAX));
        let text = format!("{}x", "ü".repeat(BYTES_MAX));
        let kept = format!("[2002 bytes cut] {}x", "ü".repeat(BYTES_MAX / 2 - 1));
        assert_eq!(excerpt(text.as_bytes(), 1), kept);
        assert!(excerpt(&vec![0xff; 1_000_000], 1).len() < 2_100);
    }
}
