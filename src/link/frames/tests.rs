//! [`FramesLink`] tests: parsing of the textual configuration, and errors when opening the link.

use super::*;

fn parse(s: &str) -> Result<FramesConfig, SpecError> {
    s.parse()
}

#[test]
fn config_text_is_parsed_into_socket_and_host_stack() {
    let c = parse("frames:dgram:/tmp/a,/tmp/b,ip=10.77.0.1/24,ip=fd77::1/64,mac=52:54:00:77:00:01,mtu=4500")
        .unwrap();
    assert_eq!(c.wire, FramesWire::Dgram { local: "/tmp/a".into(), remote: "/tmp/b".into() });
    assert_eq!(c.wire.to_string(), "frames:dgram:/tmp/a,/tmp/b");
    assert_eq!(c.host_stack.addresses.len(), 2);
    assert_eq!((c.host_stack.mac.to_string().as_str(), c.mtu), ("52:54:00:77:00:01", 4500));
    let c = parse("frames:listen:/tmp/x,ip=10.77.0.1,gw=10.77.0.254").unwrap();
    assert_eq!(c.wire, FramesWire::Listen("/tmp/x".into()));
    // The MAC is derived from the address, so it is the same on every run.
    assert_eq!((c.host_stack.mac.to_string().as_str(), c.mtu), ("52:58:0a:4d:00:01", 1500));
    assert_eq!(c.host_stack.gateways, ["10.77.0.254".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!((c.speed, c.pfc), (None, None));
    let c = parse("frames:listen:/tmp/x,ip=10.77.0.1,speed=40000,pfc=on,xoff=9000,xon=3000").unwrap();
    assert_eq!(c.speed, Some(40_000_000_000));
    assert_eq!(c.pfc, Some(PfcConfig::default().xoff(9000).xon(3000)));
}

#[test]
fn error_for_invalid_config_text_explains_the_cause() {
    for (text, expected) in [
        ("udp:1", "is not of the form"),
        ("frames:tap:x,ip=10.0.0.1", "is not of the form"),
        ("frames:dgram:/a,ip=10.0.0.1", "is not of the form"),
        ("frames:listen:", "is not of the form"),
        ("frames:listen:/a", "no address"),
        ("frames:listen:/a,ip=10.0.0", "is not an IP address"),
        ("frames:listen:/a,ip=10.0.0.1/40", "from 0 to 32"),
        ("frames:listen:/a,ip=10.0.0.1,mac=52:54", "six two-digit"),
        ("frames:listen:/a,ip=10.0.0.1,mac=01:00:5e:00:00:01", "group"),
        ("frames:listen:/a,ip=10.0.0.1,mtu=1500,mtu=1500", "twice"),
        ("frames:listen:/a,ip=10.0.0.1,mtu=9", "from 576"),
        ("frames:listen:/a,ip=10.0.0.1,gw=x", "gw=x"),
        ("frames:listen:/a,ip=10.0.0.1,vlan=4095", "vlan=4095"),
        ("frames:listen:/a,ip=10.0.0.1,rate=5", "unknown option \"rate=5\""),
        ("frames:listen:/a,ip=10.0.0.1,speed=0", "speed=0: not a number of Mb/s"),
        ("frames:listen:/a,ip=10.0.0.1,pfc=yes", "write pfc=on"),
        ("frames:listen:/a,ip=10.0.0.1,pfc=on,pfc=on", "twice"),
        ("frames:listen:/a,ip=10.0.0.1,xoff=1", "add pfc=on"),
        ("frames:listen:/a,ip=10.0.0.1,pfc=off,xon=1", "add pfc=on"),
        ("frames:listen:/a,ip=10.0.0.1,pfc=on,xoff=0", "xoff=0"),
        ("frames:listen:/a,ip=10.0.0.1,pfc=on,xoff=1,xon=2", "xon=2 is above xoff=1"),
    ] {
        let message = parse(text).unwrap_err().to_string();
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn error_of_a_failed_open_suggests_a_solution() {
    let open = |s: &str| FramesLink::open(parse(s).unwrap()).unwrap_err().to_string();
    assert!(open("frames:connect:/nonexistent/x,ip=10.0.0.1").contains("start the listening side first"));
    assert!(open("frames:listen:/nonexistent/x,ip=10.0.0.1").contains("create the directory"));
}
