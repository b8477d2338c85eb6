//! Tests of links over interfaces of network namespaces. Need root and iproute2.

mod doctor_in_namespace;
mod link_packet;
mod marking_queue;
mod multihomed;
mod port_state;
mod shareable_containers;
mod sysfs_in_namespace;
