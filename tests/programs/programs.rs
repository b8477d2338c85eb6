//! Tests of Debian's unmodified ibverbs-utils on the library, over the loopback interface and without
//! privilege, and of our own program (`c/corners.c`) for cases that ibverbs-utils do not cover.

use std::time::Duration;

use urxe_test_support::programs::{CProgram, Library, addresses, both_ends, port, text, wait_for_listener};

/// Runs both ends of a ping-pong program and returns their output.
fn pingpong(program: &str, args: &[&str]) -> String {
    let (library, [server, client], port) = (Library::new(), addresses(), port().to_string());
    let command = |address: &str, host: &[&str]| {
        let mut command = library.program(program, address);
        command.args(["-g", "0", "-p", &port]).args(args).args(host);
        command
    };
    let (server_command, client_command) = (command(&server, &[]), command(&client, &["127.0.0.1"]));
    both_ends(server_command, || wait_for_listener(&port), client_command, Duration::from_secs(60)).concat()
}

#[test]
fn ibv_devices_and_ibv_devinfo_show_the_device() {
    let library = Library::new();
    let [address, _] = addresses();
    let out = library.program("ibv_devices", &address).output().unwrap();
    assert!(out.status.success() && text(&out).contains("urxe0"), "{}", text(&out));
    let out = library.program("ibv_devinfo", &address).arg("-v").output().unwrap();
    let printed = text(&out);
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
        assert!(printed.contains(line), "{line:?} is not in:\n{printed}");
    }
    assert!(out.status.success());
}

#[test]
fn error_for_a_nonexistent_link_lists_the_available_links() {
    let library = Library::new();
    let out = library.program("ibv_devinfo", "192.0.2.1").output().unwrap();
    assert!(!out.status.success());
    assert!(
        text(&out).contains("URXE_LINK: no such link 'udp:192.0.2.1': available links are udp, udp:"),
        "{}",
        text(&out)
    );
}

#[test]
fn error_for_a_udp_port_in_use_names_the_address_and_port() {
    let library = Library::new();
    let [address, _] = addresses();
    let _other = std::net::UdpSocket::bind((address.as_str(), 4791)).unwrap();
    let out = library.program("ibv_devinfo", &address).output().unwrap();
    assert!(!out.status.success());
    assert!(text(&out).contains(&address) && text(&out).contains("4791"), "{}", text(&out));
}

#[test]
fn rc_pingpong_completes_its_iterations() {
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
        let printed = pingpong("ibv_rc_pingpong", args);
        assert_eq!(printed.matches("iters in").count(), 2, "{printed}");
    }
}

#[test]
fn uc_pingpong_completes_its_iterations() {
    for args in [&[][..], &["-e"]] {
        assert_eq!(pingpong("ibv_uc_pingpong", args).matches("iters in").count(), 2);
    }
}

#[test]
fn ud_pingpong_completes_its_iterations() {
    for args in [&[][..], &["-e"]] {
        assert_eq!(pingpong("ibv_ud_pingpong", args).matches("iters in").count(), 2);
    }
}

#[test]
fn srq_pingpong_completes_its_iterations() {
    for args in [&[][..], &["-e"], &["-q", "8"]] {
        assert_eq!(pingpong("ibv_srq_pingpong", args).matches("iters in").count(), 2);
    }
}

#[test]
fn xsrq_pingpong_completes_its_iterations() {
    for args in [&[][..], &["-e"]] {
        let printed = pingpong("ibv_xsrq_pingpong", args);
        assert_eq!(printed.matches("success").count(), 2, "{printed}");
    }
}

/// Runs one case of `c/corners.c` on the library.
fn run_case(name: &str) -> String {
    let [address, _] = addresses();
    CProgram::build("corners").run(&address, &[name])
}

#[test]
fn fork_while_the_device_is_busy_leaves_parent_and_child_working() {
    let [address, _] = addresses();
    CProgram::build("forks").run(&address, &[]);
}

#[test]
fn received_message_is_acknowledged_although_the_process_ends_at_once() {
    let (leaving, [address, _]) = (CProgram::build("leaving"), addresses());
    for way in ["return", "_exit", "SIGKILL", "exec"] {
        for shared_memory in ["auto", "off"] {
            for _ in 0..5 {
                leaving.run_with(&address, &[way], |command| {
                    command.env("URXE_SHARED_MEMORY", shared_memory);
                });
            }
        }
    }
}

#[test]
fn thread_can_post_and_poll_during_its_exit() {
    run_case("ending");
}

#[test]
fn threads_of_the_library_handle_no_signals() {
    run_case("signals");
}

#[test]
fn no_async_event_refers_to_a_destroyed_queue_pair() {
    println!("{}", run_case("events"));
}

#[test]
fn event_descriptors_work_with_epoll_and_in_nonblocking_mode() {
    run_case("descriptors");
}

#[test]
fn library_can_be_unloaded_with_its_device_closed_or_open() {
    let [address, _] = addresses();
    CProgram::build_with("unloading", &[]).run(&address, &[]);
}

#[test]
fn device_can_be_opened_more_than_once() {
    run_case("twice");
}

#[test]
fn work_requests_built_by_the_extended_post_calls_complete() {
    run_case("session");
}

#[test]
fn registration_of_unmapped_memory_fails_with_efault() {
    run_case("memory");
}

#[test]
fn registered_memory_is_resident_if_the_device_may_write_to_it() {
    run_case("populated");
}

#[test]
fn tebibyte_of_sparse_memory_is_registered_without_touching_its_pages() {
    run_case("sparse");
}

#[test]
fn access_to_an_unmapped_part_of_an_on_demand_region_fails() {
    run_case("on demand");
}

#[test]
fn device_memory_is_allocated_and_accessed() {
    run_case("device memory");
}

#[test]
fn pd_and_td_of_a_parent_domain_cannot_be_deallocated_before_it() {
    run_case("parents");
}

#[test]
fn objects_of_one_context_are_imported_by_another() {
    run_case("imported");
}

#[test]
fn reset_discards_completions_and_gid_table_has_an_entry_for_each_address() {
    run_case("anew");
}
