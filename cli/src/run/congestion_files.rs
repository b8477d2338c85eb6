//! Names and values of the files for congestion control in `/sys/class/net/IF/ecn` and in debugfs, which are
//! those of the drivers of ConnectX adapters.

use urxe::verbs::{Congestion, CongestionParameter as Parameter};

/// Number of priorities of a port.
const PRIORITIES: usize = 8;

/// Parameters of the notification point; all others are of the reaction point.
const NOTIFICATION_POINT: [Parameter; 3] =
    [Parameter::MinTimeBetweenCnps, Parameter::CnpDscp, Parameter::Cnp8021pPrio];

/// Returns the names, relative to `/sys/class/net/IF/ecn`, and the contents of the files that show which
/// parts of congestion control are enabled. `sends_cnps` is set if the device answers packets marked
/// "congestion experienced" with CNPs.
pub fn enabled(congestion: &Congestion, sends_cnps: bool) -> impl Iterator<Item = (String, String)> + use<> {
    let points = [("roce_np", sends_cnps), ("roce_rp", congestion.uses_marks())].into_iter();
    points.flat_map(|(point, is_enabled)| {
        let file = move |priority| format!("{point}/enable/{priority}");
        (0..PRIORITIES).map(move |priority| (file(priority), u8::from(is_enabled).to_string()))
    })
}

/// Returns the parameters that ConnectX adapters have, with their values.
pub fn parameters(congestion: &Congestion) -> impl Iterator<Item = (Parameter, u32)> {
    congestion.parameters().filter(|(p, _)| !p.to_string().starts_with("delay_"))
}

/// Returns the name of a parameter's file, relative to `/sys/class/net/IF/ecn`.
pub fn ecn_name(parameter: Parameter) -> String {
    let point = if NOTIFICATION_POINT.contains(&parameter) { "roce_np" } else { "roce_rp" };
    format!("{point}/{parameter}")
}

/// File in mlx5's directory in debugfs that is no parameter: the priority of CNPs is the one given, not that
/// of the marked packet.
pub const CNP_PRIO_MODE: (&str, &str) = ("np_cnp_prio_mode", "0");

/// Returns the name of a parameter's file in mlx5's directory `cc_params` in debugfs.
pub fn debugfs_name(parameter: Parameter) -> String {
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
    use super::*;

    #[test]
    fn files_have_the_names_of_mlx5() {
        let congestion = Congestion::default();
        let names =
            |name: fn(Parameter) -> String| parameters(&congestion).map(|(p, _)| name(p)).collect::<Vec<_>>();
        let ecn = names(ecn_name);
        for file in ["roce_np/cnp_dscp", "roce_np/cnp_802p_prio", "roce_np/min_time_between_cnps"] {
            assert!(ecn.contains(&file.into()), "{file}");
        }
        assert_eq!(ecn.iter().filter(|name| name.starts_with("roce_rp/")).count(), 16);
        let debugfs = names(debugfs_name).join(" ");
        // drivers/infiniband/hw/mlx5/cong.c, from Linux 6.1.
        let expected = "rp_time_reset rp_byte_reset rp_threshold rp_ai_rate rp_hai_rate rp_min_rate rp_max_rate rp_gd \
                        rp_min_dec_fac rp_dce_tcp_g rp_dce_tcp_rtt rp_initial_alpha_value \
                        rp_rate_to_set_on_first_cnp rp_rate_reduce_monitor_period rp_clamp_tgt_rate \
                        rp_clamp_tgt_rate_ati np_min_time_between_cnps np_cnp_dscp np_cnp_prio np_cnp_prio_mode";
        assert_eq!(format!("{debugfs} {}", CNP_PRIO_MODE.0), expected);
    }

    #[test]
    fn points_are_shown_as_enabled_if_they_act() {
        for (congestion, sends_cnps, expected) in
            [(Congestion::DCQCN_CONNECTX, true, "1"), (Congestion::LOSS_DRIVEN, false, "0")]
        {
            let enabled: Vec<_> = enabled(&congestion, sends_cnps).collect();
            assert_eq!(enabled.len(), 2 * PRIORITIES);
            assert!(enabled.iter().all(|(_, value)| value == expected), "{enabled:?}");
            assert_eq!([&enabled[0].0, &enabled[15].0], ["roce_np/enable/0", "roce_rp/enable/7"]);
        }
    }
}
