//! Tests of decoding and encoding communication manager MADs.

use proptest::prelude::*;

use super::*;
use crate::wire::Mtu;

/// Returns a MAD of the given kind with the given data.
fn mad(kind: MessageKind, data: &[u8]) -> [u8; MAD_LEN] {
    let mut bytes = [0; MAD_LEN];
    bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
    bytes[16..18].copy_from_slice(&kind.attribute().to_be_bytes());
    bytes[MAD_HEADER_LEN..].copy_from_slice(data);
    bytes
}

fn zeros(bytes: &[u8]) -> u32 {
    bytes.iter().map(|b| b.count_zeros()).sum()
}

/// Decodes messages whose bits are all set and encodes them again: only bits that the specification's tables
/// reserve may be lost.
#[test]
fn message_fields_cover_all_but_the_reserved_bits() {
    let reserved = |kind| match kind {
        // Reserved words, and bytes beside fields of 24 bits; six bits beside each flow label, three beside
        // each SL and each timeout.
        MessageKind::Req => 8 + 32 + 2 * (6 + 3 + 3),
        MessageKind::Mra => 6 + 3,
        MessageKind::Rej => 6 + 1,
        MessageKind::Rep => 4,
        MessageKind::Dreq => 8,
        MessageKind::Lap => 32 + 3 + 32 + 4 + 2 + 3 + 3,
        MessageKind::Apr => 16,
        MessageKind::SidrReq => 16,
        MessageKind::Rtu | MessageKind::Drep | MessageKind::SidrRep => 0,
    };
    for kind in MessageKind::ALL {
        let read = Mad::parse(&mad(*kind, &[0xff; 232])).unwrap();
        let code_of_no_mtu = if *kind == MessageKind::Req { 4 } else { 0 };
        let lost = zeros(&read.bytes()[MAD_HEADER_LEN..]);
        assert_eq!(lost, reserved(*kind) + code_of_no_mtu, "{}", kind.name());
    }
}

proptest! {
    #[test]
    fn decoded_message_encodes_to_an_equivalent_one(
        kind in proptest::sample::select(MessageKind::ALL),
        data in proptest::collection::vec(any::<u8>(), 232),
        transaction: u64,
        modifier: u32,
    ) {
        let mut bytes = mad(kind, &data);
        bytes[8..16].copy_from_slice(&transaction.to_be_bytes());
        bytes[20..24].copy_from_slice(&modifier.to_be_bytes());
        let read = Mad::parse(&bytes).unwrap();
        prop_assert_eq!((read.transaction, read.modifier, read.message.kind()), (transaction, modifier, kind));
        let again = read.bytes();
        prop_assert_eq!(Mad::parse(&again), Ok(read));
        // No bit is set that was clear.
        prop_assert!(again.iter().zip(&bytes).all(|(new, old)| new & !old == 0));
    }

    #[test]
    fn parser_does_not_panic_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Mad::parse(&bytes);
    }
}

#[test]
fn parsing_an_invalid_mad_fails_with_the_error_for_its_cause() {
    let good = mad(MessageKind::Rtu, &[0; 232]);
    let with = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        Mad::parse(&bytes).unwrap_err()
    };
    assert_eq!(Mad::parse(&good[..255]), Err(MadError::Length(255)));
    assert_eq!(with(0, 2), MadError::BaseVersion(2));
    assert_eq!(with(1, 3), MadError::Class(3));
    assert_eq!(with(2, 1), MadError::ClassVersion(1));
    assert_eq!(with(3, 0x81), MadError::Method(0x81));
    assert_eq!(with(17, 0x0f), MadError::Attribute(0x0f));
    assert_eq!(with(16, 0x10), MadError::Attribute(0x1014));
}

#[test]
fn cm_codes_round_trip_even_if_unassigned() {
    for code in 0..=u16::MAX {
        assert_eq!(RejReason::from_code(code).code(), code);
    }
    for code in 0..=u8::MAX {
        assert_eq!(SidrStatus::from_code(code).code(), code);
        assert_eq!(AprStatus::from_code(code).code(), code);
    }
    assert_eq!(RejReason::ALL.len(), 34);
    assert_eq!(RejReason::Consumer.code(), 28);
    assert_eq!(RejReason::Other(34).to_string(), "unassigned code 34");
}

#[test]
fn vendor_id_is_in_the_bytes_beside_fields_of_24_bits() {
    let vendor_id = 0xab_cdef;
    let rep = Rep { vendor_id, ..Rep::default() };
    let bytes = Mad { transaction: 0, modifier: 0, message: rep.into() }.bytes();
    assert_eq!([15, 19, 23].map(|i| bytes[MAD_HEADER_LEN + i]), [0xab, 0xcd, 0xef]);
    let rep = SidrRep { vendor_id, ..SidrRep::default() };
    let bytes = Mad { transaction: 0, modifier: 0, message: rep.into() }.bytes();
    assert_eq!([6, 7, 11].map(|i| bytes[MAD_HEADER_LEN + i]), [0xab, 0xcd, 0xef]);
}

#[test]
fn recipient_is_the_service_of_a_request_and_the_remote_id_of_other_messages() {
    let service = ServiceId(7);
    let req = Req { service, mtu: Some(Mtu::Mtu1024), ..Req::default() };
    assert_eq!(Message::from(req).recipient(), Recipient::Service(service));
    let rej = Rej { local: CommId(1), remote: CommId(2), ..Rej::default() };
    assert_eq!(Message::from(rej).recipient(), Recipient::Connection(CommId(2)));
    let rep = SidrRep { request: CommId(3), ..SidrRep::default() };
    assert_eq!(Message::from(rep).recipient(), Recipient::Connection(CommId(3)));
}

#[test]
fn rej_and_apr_info_length_is_clamped_to_the_field_size() {
    let rej = Rej { info_len: 127, ..Rej::default() };
    assert_eq!(rej.info().len(), 72);
    assert_eq!(Apr { info_len: 255, ..Apr::default() }.info().len(), 72);
}
