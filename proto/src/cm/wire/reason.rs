//! Reasons of a REJ (12.6.7.2, table 109).

use std::fmt;

/// The reason of a REJ. Unnamed values are preserved for the program.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u16);

/// Defines a constant for each reason, and the table of their names.
macro_rules! reasons {
    ($($number:literal $constant:ident $name:literal,)*) => {
        impl RejectReason {
            $(
                #[doc = $name]
                pub const $constant: RejectReason = RejectReason($number);
            )*

            /// All named reasons, with their names.
            pub const ALL: &[(RejectReason, &str)] = &[$((Self::$constant, $name)),*];
        }
    };
}

reasons! {
    1 NO_QP "no queue pair available",
    2 NO_EEC "no end-to-end context available",
    3 NO_RESOURCES "no resources available",
    4 TIMEOUT "timeout",
    5 UNSUPPORTED "unsupported request",
    6 INVALID_COMM_ID "invalid communication ID",
    7 INVALID_COMM_INSTANCE "invalid communication instance",
    8 INVALID_SERVICE_ID "invalid service ID",
    9 INVALID_TRANSPORT "invalid transport service type",
    10 STALE_CONNECTION "stale connection",
    11 NO_RDC "reliable datagram channel does not exist",
    12 PRIMARY_GID "primary remote port GID rejected",
    13 PRIMARY_LID "primary remote port LID rejected",
    14 PRIMARY_SL "invalid primary service level",
    15 PRIMARY_TRAFFIC_CLASS "invalid primary traffic class",
    16 PRIMARY_HOP_LIMIT "invalid primary hop limit",
    17 PRIMARY_PACKET_RATE "invalid primary packet rate",
    18 ALTERNATE_GID "alternate remote port GID rejected",
    19 ALTERNATE_LID "alternate remote port LID rejected",
    20 ALTERNATE_SL "invalid alternate service level",
    21 ALTERNATE_TRAFFIC_CLASS "invalid alternate traffic class",
    22 ALTERNATE_HOP_LIMIT "invalid alternate hop limit",
    23 ALTERNATE_PACKET_RATE "invalid alternate packet rate",
    24 PORT_AND_CM_REDIRECTION "port and CM redirection",
    25 PORT_REDIRECTION "port redirection",
    26 INVALID_PATH_MTU "invalid path MTU",
    27 INSUFFICIENT_RESPONDER_RESOURCES "insufficient responder resources",
    28 CONSUMER "consumer reject",
    29 INVALID_RNR_RETRY "RNR retry count reject",
    30 DUPLICATE_LOCAL_COMM_ID "duplicate local communication ID",
    31 INVALID_CLASS_VERSION "invalid class version",
    32 PRIMARY_FLOW_LABEL "invalid primary flow label",
    33 ALTERNATE_FLOW_LABEL "invalid alternate flow label",
    35 VENDOR_OPTION "vendor option not supported",
}

impl RejectReason {
    /// The name of the reason, if it has one.
    pub fn name(self) -> Option<&'static str> {
        let found = Self::ALL.iter().find(|(reason, _)| *reason == self);
        found.map(|(_, name)| *name)
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{} ({name})", self.0),
            None => write!(f, "{} (unknown reason)", self.0),
        }
    }
}

impl fmt::Debug for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
