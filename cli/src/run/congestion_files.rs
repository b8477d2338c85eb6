//! Files that show congestion control in `/sys/class/net/IF/ecn` and in debugfs, as the drivers of ConnectX
//! adapters do.

use urxe::verbs::{Congestion, CongestionParameter as Parameter};

/// Number of priorities of a port.
const PRIORITIES: usize = 8;

/// Parameters of the notification point; all others are of the reaction point.
const NOTIFICATION_POINT: [Parameter; 3] =
    [Parameter::MinTimeBetweenCnps, Parameter::CnpDscp, Parameter::Cnp8021pPrio];

/// Congestion control of a device as its files show it.
#[derive(Clone, Copy)]
pub struct View {
    pub congestion: Congestion,
    /// Whether the device answers packets marked "congestion experienced" with CNPs.
    pub sends_cnps: bool,
}

impl View {
    /// Returns the names, relative to `/sys/class/net/IF/ecn`, and the contents of the files there.
    pub fn ecn(&self) -> impl Iterator<Item = (String, String)> {
        let reacts = self.congestion.uses_marks();
        let enabled = [("roce_np", self.sends_cnps), ("roce_rp", reacts)].into_iter();
        let enabled = enabled.flat_map(|(point, is_enabled)| {
            let file = move |priority| format!("{point}/enable/{priority}");
            (0..PRIORITIES).map(move |priority| (file(priority), u8::from(is_enabled).to_string()))
        });
        enabled.chain(self.parameters().map(|(parameter, value)| {
            let point = if NOTIFICATION_POINT.contains(&parameter) { "roce_np" } else { "roce_rp" };
            (format!("{point}/{parameter}"), value)
        }))
    }

    /// Returns the names and the contents of the files in mlx5's directory `cc_params` in debugfs.
    pub fn cc_params(&self) -> impl Iterator<Item = (String, String)> {
        let parameters = self.parameters().map(|(parameter, value)| (debugfs_name(parameter), value));
        // The priority of CNPs is the one given, not that of the marked packet.
        parameters.chain([("np_cnp_prio_mode".into(), "0".into())])
    }

    /// Returns the parameters that ConnectX adapters have, with their values.
    fn parameters(&self) -> impl Iterator<Item = (Parameter, String)> {
        let congestion = self.congestion;
        let adapters = Parameter::ALL.iter().filter(|p| !p.to_string().starts_with("delay_"));
        adapters.map(move |p| (*p, congestion.get(*p).to_string()))
    }
}

/// Returns the name of a parameter in debugfs.
fn debugfs_name(parameter: Parameter) -> String {
    let name = parameter.to_string();
    match parameter {
        Parameter::Cnp8021pPrio => "np_cnp_prio".into(),
        Parameter::ClampTgtRateAfterTimeInc => "rp_clamp_tgt_rate_ati".into(),
        _ if NOTIFICATION_POINT.contains(&parameter) => format!("np_{name}"),
        _ => format!("rp_{}", name.strip_prefix("rpg_").unwrap_or(&name)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn files_have_the_names_and_values_of_mlx5() {
        let congestion = "dcqcn:connectx,cnp_dscp=46,rpg_ai_rate=7".parse().unwrap();
        let view = View { congestion, sends_cnps: true };
        let ecn: BTreeMap<_, _> = view.ecn().collect();
        for (file, value) in [
            ("roce_np/cnp_dscp", "46"),
            ("roce_np/cnp_802p_prio", "6"),
            ("roce_np/min_time_between_cnps", "4"),
            ("roce_np/enable/0", "1"),
            ("roce_rp/enable/7", "1"),
            ("roce_rp/rpg_ai_rate", "7"),
            ("roce_rp/clamp_tgt_rate_after_time_inc", "1"),
        ] {
            assert_eq!(ecn[file], value, "{file}");
        }
        assert_eq!(ecn.len(), 3 + 16 + 2 * PRIORITIES);
        let debugfs: Vec<_> = view.cc_params().map(|(name, _)| name).collect();
        // drivers/infiniband/hw/mlx5/cong.c, from Linux 6.1.
        let expected = "rp_time_reset rp_byte_reset rp_threshold rp_ai_rate rp_hai_rate rp_min_rate rp_max_rate rp_gd \
                        rp_min_dec_fac rp_dce_tcp_g rp_dce_tcp_rtt rp_initial_alpha_value \
                        rp_rate_to_set_on_first_cnp rp_rate_reduce_monitor_period rp_clamp_tgt_rate \
                        rp_clamp_tgt_rate_ati np_min_time_between_cnps np_cnp_dscp np_cnp_prio np_cnp_prio_mode";
        assert_eq!(debugfs.join(" "), expected);
    }

    #[test]
    fn points_that_do_not_act_are_shown_as_disabled() {
        let view = View { congestion: Congestion::LOSS_DRIVEN, sends_cnps: false };
        let enabled: Vec<_> = view.ecn().filter(|(file, _)| file.contains("/enable/")).collect();
        assert_eq!(enabled.len(), 2 * PRIORITIES);
        assert!(enabled.iter().all(|(_, value)| value == "0"), "{enabled:?}");
    }
}
