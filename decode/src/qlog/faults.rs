//! Faults that urxe has injected, as the comments of its captures tell.

use crate::capture::Frame;

/// Returns the fault rule in a packet's comment, as urxe writes it, if it has dropped the packet.
pub fn lossy_fault(frame: &Frame<'_>) -> Option<String> {
    frame.comment.as_deref().and_then(lossy_rule)
}

fn lossy_rule(comment: &str) -> Option<String> {
    comment.split("; ").find_map(|part| {
        let (rule, _) = part.strip_prefix("fault ")?.rsplit_once(", packet ")?;
        let losses = ["drop=", "nak=", "rnr=", "reject"];
        let is_loss =
            rule.split([':', ',', ' ']).any(|word| losses.iter().any(|loss| word.starts_with(loss)));
        is_loss.then(|| rule.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_faults_that_lose_the_packet_are_drops() {
        let rule = |text| lossy_rule(text).unwrap_or_default();
        assert_eq!(rule("fault drop=3, packet 3"), "drop=3");
        assert_eq!(rule("fault rx:drop=every:10, packet 20"), "rx:drop=every:10");
        assert_eq!(rule("fault delay=1,by=2ms, packet 1; fault rnr=2, packet 2"), "rnr=2");
        assert_eq!(rule("fault mark=1, packet 1"), "");
        assert_eq!(rule("drop"), "");
    }
}
