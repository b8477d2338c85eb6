//! Sizes with binary suffixes on the command line.

/// Parses a size such as 4096, 64K, 1M or 2G; suffixes are powers of 1024.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(1 << shift)).filter(|n| *n > 0);
    bytes
        .ok_or_else(|| format!("invalid size '{text}': specify bytes, or a number with the suffix K, M or G"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_suffixes_are_powers_of_1024() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64K"), Ok(65_536));
        assert_eq!(parse_size("1m"), Ok(1 << 20));
        assert_eq!(parse_size("2G"), Ok(2 << 30));
        for bad in ["", "K", "0", "-1", "1.5M", "99999999999G", "1T"] {
            assert!(parse_size(bad).unwrap_err().contains("invalid size"), "{bad}");
        }
    }
}
