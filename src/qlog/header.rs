//! First record of a log.

use serde::Serialize;

/// URI of the event schema.
pub const EVENT_SCHEMA: &str = "urn:urxe:qlog:events:rdma";

const FILE_SCHEMA: &str = "urn:ietf:params:qlog:file:sequential";
const FORMAT: &str = "application/qlog+json-seq";

/// First record of a log (`QlogFileSeq` of the main schema).
#[derive(Clone, Debug, Serialize)]
pub struct Header {
    file_schema: &'static str,
    serialization_format: &'static str,
    title: String,
    trace: Trace,
}

/// Description of the events (`TraceSeq` of the main schema).
#[derive(Clone, Debug, Serialize)]
pub struct Trace {
    common_fields: CommonFields,
    vantage_point: VantagePoint,
    event_schemas: [&'static str; 1],
}

#[derive(Clone, Debug, Serialize)]
struct CommonFields {
    time_format: &'static str,
    reference_time: Reference,
}

/// Time that those of the events count from.
#[derive(Clone, Debug, Serialize)]
pub struct Reference {
    clock_type: &'static str,
    epoch: String,
}

/// Place where the events were seen.
#[derive(Clone, Debug, Serialize)]
pub struct VantagePoint {
    /// Name: of the NICs, or of the captures.
    pub name: String,
    /// `network` for captures without directions, otherwise `unknown`: a NIC may be client and server.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Side from which `network` looks: `client` is the one that sent the first packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow: Option<&'static str>,
}

impl Reference {
    /// Returns the wall clock, with times that count from `second` after 1970.
    pub fn wall(second: u64) -> Reference {
        Reference { clock_type: "system", epoch: rfc3339(second) }
    }

    /// Returns the clock of a simulation.
    pub fn simulated() -> Reference {
        Reference { clock_type: "monotonic", epoch: "unknown".into() }
    }
}

impl Header {
    /// Creates a header.
    pub fn new(title: &str, reference_time: Reference, vantage_point: VantagePoint) -> Header {
        let common_fields = CommonFields { time_format: "relative_to_epoch", reference_time };
        Header {
            file_schema: FILE_SCHEMA,
            serialization_format: FORMAT,
            title: title.to_owned(),
            trace: Trace { common_fields, vantage_point, event_schemas: [EVENT_SCHEMA] },
        }
    }
}

/// Returns the lengths of a year's months.
fn months(year: u64) -> [u64; 12] {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    [31, 28 + u64::from(is_leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
}

/// Formats a number of seconds since 1970 as date and time (RFC 3339).
pub fn rfc3339(seconds: u64) -> String {
    let (mut days, of_day) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    while days >= months(year).iter().sum() {
        days -= months(year).iter().sum::<u64>();
        year += 1;
    }
    let mut month = 1;
    for length in months(year) {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.000Z", days + 1)
}

/// Returns the seconds since 1970 of a date and time as [`rfc3339`] formats it; `None` for another text.
pub fn seconds_of(text: &str) -> Option<u64> {
    let number = |at: std::ops::Range<usize>| text.get(at)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    let of_years: u64 = (1970..year).flat_map(months).sum();
    let of_months: u64 = months(year)[..month as usize - 1].iter().sum();
    let days = of_years + of_months + day - 1;
    Some(days * 86_400 + number(11..13)? * 3600 + number(14..16)? * 60 + number(17..19)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_in_leap_years_and_others() {
        let cases = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (1_796_083_200, "2026-12-01T00:00:00.000Z"),
        ];
        for (seconds, text) in cases {
            assert_eq!((rfc3339(seconds).as_str(), seconds_of(text)), (text, Some(seconds)));
        }
        assert_eq!([seconds_of("unknown"), seconds_of("2024-13-01T00:00:00Z")], [None, None]);
    }
}
