//! Identifiers and codes in communication manager messages.

use crate::wire::numbers::{codes, hexadecimal};

/// Communication ID of a connection. Each end chooses one, and the other end's messages use it to identify
/// the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct CommId(pub u32);

/// Service ID, which identifies a service to clients: a generalisation of a port number (IBA A3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ServiceId(pub u64);

/// Enhanced connection establishment (ECE): vendor-specific options that the two ends negotiate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ece {
    /// Vendor ID, 24 bits; 0 if there is none.
    pub vendor_id: u32,
    /// Vendor-specific options, carried in the MAD's attribute modifier.
    pub options: u32,
}

hexadecimal! {
    CommId: "comm id {:#010x}", "{:#010x}";
    ServiceId: "service {:#018x}", "{:#018x}";
}

codes! {
    /// Reason for a REJ (IBA 12.6.7.2; code 35 belongs to enhanced connection establishment).
    RejReason: u16 {
        /// No queue pair is available.
        NoQp = 1, "no queue pair available";
        /// No end-to-end context is available.
        NoEec = 2, "no end-to-end context available";
        /// Another resource is not available.
        NoResources = 3, "no resources available";
        /// The sender timed out. If it does not know the recipient's ID, the additional information contains
        /// the sender's CA GUID.
        Timeout = 4, "timeout";
        /// The request is not supported.
        UnsupportedRequest = 5, "unsupported request";
        /// The communication ID is unknown.
        InvalidCommId = 6, "invalid communication ID";
        /// The two communication IDs do not belong to the same connection.
        InvalidCommInstance = 7, "invalid communication instance";
        /// No program listens on the service ID.
        InvalidServiceId = 8, "invalid service ID";
        /// The transport service is not supported.
        InvalidTransport = 9, "invalid transport service type";
        /// The rejecting side still has a connection to the same queue pair.
        StaleConnection = 10, "stale connection";
        /// The reliable datagram channel does not exist.
        NoRdc = 11, "RDC does not exist";
        /// The primary path's remote GID is rejected; the additional information contains the correct one.
        PrimaryGid = 12, "primary remote port GID rejected";
        /// The primary path's remote LID is rejected.
        PrimaryLid = 13, "primary remote port LID rejected";
        /// The primary path's service level is invalid.
        PrimarySl = 14, "invalid primary SL";
        /// The primary path's traffic class is invalid.
        PrimaryTrafficClass = 15, "invalid primary traffic class";
        /// The primary path's hop limit is invalid.
        PrimaryHopLimit = 16, "invalid primary hop limit";
        /// The primary path's rate is invalid.
        PrimaryRate = 17, "invalid primary packet rate";
        /// The alternate path's remote GID is rejected; the additional information contains the correct one.
        AlternateGid = 18, "alternate remote port GID rejected";
        /// The alternate path's remote LID is rejected.
        AlternateLid = 19, "alternate remote port LID rejected";
        /// The alternate path's service level is invalid.
        AlternateSl = 20, "invalid alternate SL";
        /// The alternate path's traffic class is invalid.
        AlternateTrafficClass = 21, "invalid alternate traffic class";
        /// The alternate path's hop limit is invalid.
        AlternateHopLimit = 22, "invalid alternate hop limit";
        /// The alternate path's rate is invalid.
        AlternateRate = 23, "invalid alternate packet rate";
        /// The request should be sent to another communication manager at another port.
        PortAndCmRedirection = 24, "port and CM redirection";
        /// The request should be sent to another port.
        PortRedirection = 25, "port redirection";
        /// The path MTU is too large; the additional information contains the code of the largest acceptable
        /// MTU.
        InvalidMtu = 26, "invalid path MTU";
        /// The peer supports too few outstanding READs and atomics.
        InsufficientResponderResources = 27, "insufficient responder resources";
        /// The application rejected the connection.
        Consumer = 28, "consumer reject";
        /// The RNR retry count is rejected.
        RnrRetryCount = 29, "RNR retry count reject";
        /// The communication ID is already in use between the two ends.
        DuplicateCommId = 30, "duplicate local communication ID";
        /// The management class version is not supported.
        InvalidClassVersion = 31, "invalid class version";
        /// The primary path's flow label is invalid.
        PrimaryFlowLabel = 32, "invalid primary flow label";
        /// The alternate path's flow label is invalid.
        AlternateFlowLabel = 33, "invalid alternate flow label";
        /// The vendor-specific options are not supported.
        VendorOption = 35, "vendor option not supported";
        _ = Other, "unassigned code {}";
    }
}

codes! {
    /// Status of a service ID resolution response (IBA 12.11.2.1).
    SidrStatus: u8 {
        /// The queue pair number and the queue key are valid.
        Valid = 0, "QPN and Q_Key are valid";
        /// The service ID is not supported.
        Unsupported = 1, "service ID not supported";
        /// The application rejected the request.
        Rejected = 2, "rejected by service provider";
        /// No queue pair is available.
        NoQp = 3, "no QP available";
        /// The request should be sent elsewhere.
        Redirected = 4, "request should be redirected";
        /// The management class version is not supported.
        UnsupportedVersion = 5, "version not supported";
        _ = Other, "unassigned code {}";
    }
}

codes! {
    /// Status of the response to a LAP (IBA 12.8.2.1).
    AprStatus: u8 {
        /// The path is loaded.
        Loaded = 0, "alternate path information is loaded";
        /// The communication ID is unknown.
        InvalidCommId = 1, "invalid communication ID";
        /// The recipient does not support alternate paths.
        Unsupported = 2, "alternate paths not supported";
        /// The application rejected the path.
        Rejected = 3, "alternate path rejected";
        /// The request should be sent elsewhere.
        Redirected = 4, "alternate path redirection";
        /// The path is already in use.
        IsCurrent = 5, "alternate path is the one in use";
        /// The queue pair does not belong to the connection.
        InvalidQpn = 6, "invalid QPN or EECN";
        /// The remote LID is rejected.
        InvalidLid = 7, "alternate remote port LID rejected";
        /// The remote GID is rejected.
        InvalidGid = 8, "alternate remote port GID rejected";
        /// The flow label is rejected.
        InvalidFlowLabel = 9, "alternate flow label rejected";
        /// The traffic class is rejected.
        InvalidTrafficClass = 10, "alternate traffic class rejected";
        /// The hop limit is rejected.
        InvalidHopLimit = 11, "alternate hop limit rejected";
        /// The rate is rejected.
        InvalidRate = 12, "alternate packet rate rejected";
        /// The service level is rejected.
        InvalidSl = 13, "alternate SL rejected";
        _ = Other, "unassigned code {}";
    }
}

codes! {
    /// Message that a REJ rejects (IBA 12.6.7.1).
    Rejected: u8 {
        /// A REQ.
        Req = 0, "REQ";
        /// A REP.
        Rep = 1, "REP";
        /// No message: the sender abandons the connection of its own accord.
        None = 2, "no message";
        _ = Other, "unassigned code {}";
    }
}

codes! {
    /// Message whose receipt an MRA acknowledges (IBA 12.6.6.1).
    Acknowledged: u8 {
        /// A REQ.
        Req = 0, "REQ";
        /// A REP.
        Rep = 1, "REP";
        /// A LAP.
        Lap = 2, "LAP";
        _ = Other, "unassigned code {}";
    }
}

codes! {
    /// Transport service of the queue pair in a REQ (IBA 12.6.5); XRC is one of the extended types.
    TransportService: u8 {
        /// Reliable connection.
        Rc = 0, "reliable connection";
        /// Unreliable connection.
        Uc = 1, "unreliable connection";
        /// Reliable datagram.
        Rd = 2, "reliable datagram";
        /// An extended transport, specified by another field.
        Extended = 3, "extended transport";
        _ = Other, "unassigned code {}";
    }
}
