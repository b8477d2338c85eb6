//! Tests of packet link configuration: parsing, and the errors for invalid text and missing interfaces.

use super::*;
use crate::host::pfc::PfcConfig;
use crate::link::options::SpecError;

fn parse(s: &str) -> Result<PacketConfig, SpecError> {
    s.parse()
}

#[test]
fn config_text_is_parsed_into_interface_and_host_stack() {
    let c = parse("packet:eth0").unwrap();
    assert_eq!(
        (c.interface.as_str(), c.host_stack, c.mtu, c.offload, c.fanout),
        ("eth0", None, None, true, true)
    );
    let c =
        parse("packet:eth0,ip=10.77.0.9/24,mac=52:54:00:77:00:09,offload=off,fanout=off,mtu=1500").unwrap();
    let host_stack = c.host_stack.unwrap();
    assert_eq!((c.speed, c.pfc), (None, None));
    assert_eq!(
        (host_stack.mac.to_string().as_str(), c.mtu, c.offload, c.fanout),
        ("52:54:00:77:00:09", Some(1500), false, false)
    );
    assert_eq!(host_stack.addresses[0].to_string(), "10.77.0.9/24");
}

#[test]
fn speed_and_flow_control_are_parsed_with_an_interface_alone() {
    let expected = PacketConfig::new("eth0").speed(25_000_000_000).pfc(PfcConfig::default().xoff(9));
    assert_eq!(parse("packet:eth0,speed=25000,pfc=on,xoff=9"), Ok(expected));
}

#[test]
fn error_for_invalid_config_text_explains_the_cause() {
    for (text, expected) in [
        ("packet:", "is not of the form"),
        ("eth0", "is not of the form"),
        ("packet:ip=10.0.0.1", "is not of the form"),
        ("packet:eth0,mac=52:54:00:77:00:09", "needs an address"),
        ("packet:eth0,gw=10.0.0.1", "needs an address"),
        ("packet:eth0,offload=maybe", "unknown option"),
        ("packet:eth0,xoff=9", "add pfc=on"),
    ] {
        let message = parse(text).unwrap_err().to_string();
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn error_for_a_missing_interface_lists_the_existing_interfaces() {
    let message = PacketLink::open(parse("packet:nonesuch0").unwrap()).unwrap_err().to_string();
    assert!(message.contains("nonesuch0") && message.contains("lo"), "{message}");
}
