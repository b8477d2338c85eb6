//! Fuzz target: parses arbitrary text as a fault of any kind, a frames link configuration and a MAC address.
//! Each parser must accept the text or reject it with an error, and none may panic. A fault that was parsed
//! keeps its text, so an equal one is created whose text is generated; parsing that must yield an equal fault
//! again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use urxe::link::FramesConfig;
use urxe::middleware::faults::Rule;
use urxe::verbs::faults::{Call, CallFault, Fault, ObjectFault};
use urxe::wire::Mac;

fuzz_target!(|text: &str| {
    match text.parse::<Rule>() {
        Ok(rule) => {
            let text = Rule::new(rule.direction, rule.action, rule.when).to_string();
            let parsed: Rule = text.parse().expect("the printed form of a rule is valid");
            assert_eq!(
                (parsed.direction, parsed.action, parsed.when),
                (rule.direction, rule.action, rule.when)
            );
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
    match text.parse::<Fault>() {
        Ok(Fault::Call(fault)) => {
            for call in Call::ALL.iter().filter(|call| fault.matches(**call)) {
                let created = CallFault::new(*call, fault.effect(), fault.when());
                assert_eq!(created.to_string().parse(), Ok(created));
            }
        }
        Ok(Fault::Object(fault)) => {
            let created = ObjectFault::new(fault.change(), fault.trigger());
            assert_eq!(created.to_string().parse(), Ok(created));
        }
        Ok(_) => {}
        Err(e) => assert!(!e.to_string().is_empty()),
    }
    if let Err(e) = text.parse::<FramesConfig>() {
        assert!(!e.to_string().is_empty());
    }
    if let Ok(mac) = text.parse::<Mac>() {
        assert_eq!(mac.to_string().parse(), Ok(mac));
    }
    // The text as an address with its prefix length.
    let _ = format!("frames:listen:socket,ip={text}").parse::<FramesConfig>();
});
