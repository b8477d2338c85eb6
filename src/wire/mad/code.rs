//! Identifiers and codes that the communication manager's messages carry.

use std::fmt;

/// What one end calls a connection: each end picks its own, and every message names the recipient's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct CommId(pub u32);

impl fmt::Debug for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "comm id {:#010x}", self.0)
    }
}

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// What a client connects to: a port in a wider sense (IBA A3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ServiceId(pub u64);

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "service {:#018x}", self.0)
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// Enhanced connection establishment: which vendor's options the ends may use between them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ece {
    /// The vendor, 24 bits; 0 is none.
    pub vendor_id: u32,
    /// Its options, carried as the MAD's attribute modifier.
    pub options: u32,
}

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident: $repr:ty { $($(#[$vdoc:meta])* $variant:ident = $code:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)*
            /// Not assigned.
            Other($repr),
        }

        impl $name {
            /// Every code that is assigned.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// The number on the wire.
            pub const fn code(self) -> $repr {
                match self {
                    $($name::$variant => $code,)*
                    $name::Other(code) => code,
                }
            }

            /// What a number stands for.
            pub const fn from_code(code: $repr) -> $name {
                match code {
                    $($code => $name::$variant,)*
                    code => $name::Other(code),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $($name::$variant => f.write_str($text),)*
                    $name::Other(code) => write!(f, "code {code}, which is not assigned"),
                }
            }
        }
    };
}

codes! {
    /// Why a connection is refused (IBA 12.6.7.2; 35 with enhanced connection establishment).
    RejReason: u16 {
        /// No queue pair.
        NoQp = 1, "no queue pair available";
        /// No end-to-end context.
        NoEec = 2, "no end-to-end context available";
        /// Out of something else.
        NoResources = 3, "no resources available";
        /// The sender has waited long enough. The information is its CA GUID, if it does not know our ID.
        Timeout = 4, "timeout";
        /// It does not do that.
        UnsupportedRequest = 5, "unsupported request";
        /// It knows no such connection.
        InvalidCommId = 6, "invalid communication ID";
        /// The IDs do not belong together.
        InvalidCommInstance = 7, "invalid communication instance";
        /// Nobody listens.
        InvalidServiceId = 8, "invalid service ID";
        /// Not this transport.
        InvalidTransport = 9, "invalid transport service type";
        /// The queue pair is of a connection that the peer still has.
        StaleConnection = 10, "stale connection";
        /// No such reliable datagram channel.
        NoRdc = 11, "RDC does not exist";
        /// The primary path's remote GID; the information is the right one.
        PrimaryGid = 12, "primary remote port GID rejected";
        /// The primary path's remote LID.
        PrimaryLid = 13, "primary remote port LID rejected";
        /// The primary path's service level.
        PrimarySl = 14, "invalid primary SL";
        /// The primary path's traffic class.
        PrimaryTrafficClass = 15, "invalid primary traffic class";
        /// The primary path's hop limit.
        PrimaryHopLimit = 16, "invalid primary hop limit";
        /// The primary path's rate.
        PrimaryRate = 17, "invalid primary packet rate";
        /// The alternate path's remote GID; the information is the right one.
        AlternateGid = 18, "alternate remote port GID rejected";
        /// The alternate path's remote LID.
        AlternateLid = 19, "alternate remote port LID rejected";
        /// The alternate path's service level.
        AlternateSl = 20, "invalid alternate SL";
        /// The alternate path's traffic class.
        AlternateTrafficClass = 21, "invalid alternate traffic class";
        /// The alternate path's hop limit.
        AlternateHopLimit = 22, "invalid alternate hop limit";
        /// The alternate path's rate.
        AlternateRate = 23, "invalid alternate packet rate";
        /// Ask elsewhere: another port and another manager.
        PortAndCmRedirection = 24, "port and CM redirection";
        /// Ask elsewhere: another port.
        PortRedirection = 25, "port redirection";
        /// The path MTU is too large; the information is the code of the largest.
        InvalidMtu = 26, "invalid path MTU";
        /// Too few READs and atomics at once.
        InsufficientResponderResources = 27, "insufficient responder resources";
        /// The program said no.
        Consumer = 28, "consumer reject";
        /// The receiver-not-ready retry count.
        RnrRetryCount = 29, "RNR retry count reject";
        /// The communication ID is in use between the two.
        DuplicateCommId = 30, "duplicate local communication ID";
        /// Another version of the message class.
        InvalidClassVersion = 31, "invalid class version";
        /// The primary path's flow label.
        PrimaryFlowLabel = 32, "invalid primary flow label";
        /// The alternate path's flow label.
        AlternateFlowLabel = 33, "invalid alternate flow label";
        /// The vendor's options.
        VendorOption = 35, "vendor option not supported";
    }
}

codes! {
    /// The answer to a service ID resolution request (IBA 12.11.2.1).
    SidrStatus: u8 {
        /// Here is the queue pair.
        Valid = 0, "QPN and Q_Key are valid";
        /// Nobody serves that.
        Unsupported = 1, "service ID not supported";
        /// The program said no.
        Rejected = 2, "rejected by service provider";
        /// No queue pair.
        NoQp = 3, "no QP available";
        /// Ask elsewhere.
        Redirected = 4, "request should be redirected";
        /// Another version of the message class.
        UnsupportedVersion = 5, "version not supported";
    }
}

codes! {
    /// The answer to an offered alternate path (IBA 12.8.2.1).
    AprStatus: u8 {
        /// The path is loaded.
        Loaded = 0, "alternate path information is loaded";
        /// It knows no such connection.
        InvalidCommId = 1, "invalid communication ID";
        /// It has no alternate paths.
        Unsupported = 2, "alternate paths not supported";
        /// The program said no.
        Rejected = 3, "alternate path rejected";
        /// Ask elsewhere.
        Redirected = 4, "alternate path redirection";
        /// It is the path in use.
        IsCurrent = 5, "alternate path is the one in use";
        /// Not the queue pair of the connection.
        InvalidQpn = 6, "invalid QPN or EECN";
        /// The remote LID.
        InvalidLid = 7, "alternate remote port LID rejected";
        /// The remote GID.
        InvalidGid = 8, "alternate remote port GID rejected";
        /// The flow label.
        InvalidFlowLabel = 9, "alternate flow label rejected";
        /// The traffic class.
        InvalidTrafficClass = 10, "alternate traffic class rejected";
        /// The hop limit.
        InvalidHopLimit = 11, "alternate hop limit rejected";
        /// The rate.
        InvalidRate = 12, "alternate packet rate rejected";
        /// The service level.
        InvalidSl = 13, "alternate SL rejected";
    }
}

codes! {
    /// Which message a REJ answers (IBA 12.6.7.1).
    Rejected: u8 {
        /// A REQ.
        Req = 0, "REQ";
        /// A REP.
        Rep = 1, "REP";
        /// None: the sender itself gives up.
        None = 2, "no message";
    }
}

codes! {
    /// Which message an MRA acknowledges (IBA 12.6.6.1).
    Acknowledged: u8 {
        /// A REQ.
        Req = 0, "REQ";
        /// A REP.
        Rep = 1, "REP";
        /// A LAP.
        Lap = 2, "LAP";
    }
}

codes! {
    /// The service of the queue pair in a REQ (IBA 12.6.5), where XRC stands for the extended types.
    TransportService: u8 {
        /// Reliable connection.
        Rc = 0, "reliable connection";
        /// Unreliable connection.
        Uc = 1, "unreliable connection";
        /// Reliable datagram.
        Rd = 2, "reliable datagram";
        /// One of the extended types, which another field tells.
        Extended = 3, "extended transport";
    }
}
