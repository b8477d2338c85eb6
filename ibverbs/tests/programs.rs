//! Unmodified programs of Debian's ibverbs-utils on the library, over the loopback interface, with no privilege; and one of
//! our own (`c/corners.c`) for what those never do.

mod support;

use std::time::Duration;

use support::{CProgram, Library, addresses, both_ends, port, text, wait_for_listener};

/// Runs both ends of a ping-pong program; what they have said.
fn pingpong(program: &str, args: &[&str]) -> String {
    let (library, [server, client], port) = (Library::new(), addresses(), port().to_string());
    let command = |address: &str, host: &[&str]| {
        let mut command = library.program(program, address);
        command.args(["-g", "0", "-p", &port]).args(args).args(host);
        command
    };
    let (serves, asks) = (command(&server, &[]), command(&client, &["127.0.0.1"]));
    both_ends(serves, || wait_for_listener(&port), asks, Duration::from_secs(60)).concat()
}

#[test]
fn devices_are_listed_and_described() {
    let library = Library::new();
    let [address, _] = addresses();
    let out = library.program("ibv_devices", &address).output().unwrap();
    assert!(out.status.success() && text(&out).contains("urxe0"), "{}", text(&out));
    let out = library.program("ibv_devinfo", &address).arg("-v").output().unwrap();
    let told = text(&out);
    for line in [
        "hca_id:\turxe0",
        "transport:\t\t\tInfiniBand (0)",
        "phys_port_cnt:\t\t\t1",
        "atomic_cap:\t\t\tATOMIC_HCA",
        "state:\t\t\tPORT_ACTIVE (4)",
        "max_mtu:\t\t4096 (5)",
        "link_layer:\t\tEthernet",
        &format!("::ffff:{address}"),
    ] {
        assert!(told.contains(line), "{line:?} is not in:\n{told}");
    }
    assert!(out.status.success());
}

#[test]
fn a_device_that_is_not_there_is_said() {
    let library = Library::new();
    let out = library.program("ibv_devinfo", "192.0.2.1").output().unwrap();
    assert!(!out.status.success());
    assert!(
        text(&out).contains("URXE_LINK: there is no link 'udp:192.0.2.1': there are udp, udp:"),
        "{}",
        text(&out)
    );
}

#[test]
fn a_taken_port_is_said() {
    let library = Library::new();
    let [address, _] = addresses();
    let _other = std::net::UdpSocket::bind((address.as_str(), 4791)).unwrap();
    let out = library.program("ibv_devinfo", &address).output().unwrap();
    assert!(!out.status.success());
    assert!(text(&out).contains(&address) && text(&out).contains("4791"), "{}", text(&out));
}

#[test]
fn rc_pingpong() {
    for args in [
        &[][..],
        &["-e"],
        &["-c"],
        &["-s", "100000", "-n", "200", "-m", "4096"],
        &["-t"],
        &["-e", "-c", "-l", "0"],
        &["-N"],
        &["-N", "-e", "-c"],
        &["-N", "-t", "-c"],
        &["-o"],
        &["-o", "-P", "-e", "-c"],
        &["-O"],
        &["-O", "-P", "-N", "-t", "-c"],
    ] {
        let told = pingpong("ibv_rc_pingpong", args);
        assert_eq!(told.matches("iters in").count(), 2, "{told}");
    }
}

#[test]
fn uc_pingpong() {
    for args in [&[][..], &["-e"]] {
        assert_eq!(pingpong("ibv_uc_pingpong", args).matches("iters in").count(), 2);
    }
}

#[test]
fn ud_pingpong() {
    for args in [&[][..], &["-e"]] {
        assert_eq!(pingpong("ibv_ud_pingpong", args).matches("iters in").count(), 2);
    }
}

#[test]
fn srq_pingpong() {
    for args in [&[][..], &["-e"], &["-q", "8"]] {
        assert_eq!(pingpong("ibv_srq_pingpong", args).matches("iters in").count(), 2);
    }
}

#[test]
fn xsrq_pingpong() {
    for args in [&[][..], &["-e"]] {
        let told = pingpong("ibv_xsrq_pingpong", args);
        assert_eq!(told.matches("success").count(), 2, "{told}");
    }
}

/// Runs one of the corners of `c/corners.c` on the library.
fn corner(name: &str) -> String {
    let [address, _] = addresses();
    CProgram::build("corners").run(&address, &[name])
}

#[test]
fn a_program_forks_while_its_device_is_busy() {
    let [address, _] = addresses();
    CProgram::build("forks").run(&address, &[]);
}

#[test]
fn who_ends_with_nothing_closed_has_acknowledged_what_he_took() {
    let (leaving, [address, _]) = (CProgram::build("leaving"), addresses());
    for _ in 0..5 {
        leaving.run(&address, &[]);
    }
}

#[test]
fn threads_post_and_poll_while_they_end() {
    corner("ending");
}

#[test]
fn the_librarys_threads_take_no_signals() {
    corner("signals");
}

#[test]
fn no_event_is_of_a_queue_that_is_gone() {
    println!("{}", corner("events"));
}

#[test]
fn descriptors_work_with_epoll_and_without_waiting() {
    corner("descriptors");
}

#[test]
fn a_program_unloads_the_library_with_its_device_closed_and_open() {
    let [address, _] = addresses();
    CProgram::build_with("unloading", &[]).run(&address, &[]);
}

#[test]
fn a_device_is_opened_more_than_once() {
    corner("twice");
}

#[test]
fn work_requests_are_put_together_call_by_call() {
    corner("session");
}

#[test]
fn memory_that_is_not_there_is_refused() {
    corner("memory");
}

#[test]
fn a_tebibyte_of_sparse_memory_is_registered_without_touching_its_pages() {
    corner("sparse");
}

#[test]
fn regions_on_demand_are_refused_where_nothing_is() {
    corner("on demand");
}

#[test]
fn device_memory() {
    corner("device memory");
}

#[test]
fn parent_domains_hold_what_they_are_made_of() {
    corner("parents");
}

#[test]
fn what_one_context_has_another_imports() {
    corner("imported");
}

#[test]
fn reset_forgets_completions_and_the_gid_table_has_an_entry_for_each_address() {
    corner("anew");
}
