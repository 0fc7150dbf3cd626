//! Ids of spaces that must not mix.

use std::fmt;

/// A number of its own type, shown as the number.
macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.0, f)
            }
        }
    };
}
pub(crate) use id;

id! {
    /// A broker's id in its real cluster. Never negative; −1 on the wire means "none".
    NodeId(i32)
}
id! {
    /// A broker's id as clients of a virtual cluster see it.
    VirtualNodeId(i32)
}
id! {
    /// Chosen by the client, echoed in the answer; any int32, repeats included.
    CorrelationId(i32)
}
id! {
    /// Version of a request's or answer's schema.
    ApiVersion(i16)
}
id! {
    /// Which request it is, e.g. 0 for Produce.
    ApiKey(i16)
}

/// A topic's id in its cluster (KIP-516). All zeros: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub [u8; 16]);

impl TopicId {
    /// Whether it names a topic at all.
    #[must_use]
    pub fn is_some(self) -> bool {
        self != Self::default()
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl ApiKey {
    /// Produce.
    pub const PRODUCE: Self = Self(0);
    /// Fetch.
    pub const FETCH: Self = Self(1);
    /// Metadata.
    pub const METADATA: Self = Self(3);
    /// FindCoordinator.
    pub const FIND_COORDINATOR: Self = Self(10);
    /// SaslHandshake.
    pub const SASL_HANDSHAKE: Self = Self(17);
    /// ApiVersions.
    pub const API_VERSIONS: Self = Self(18);
    /// SaslAuthenticate.
    pub const SASL_AUTHENTICATE: Self = Self(36);
    /// DescribeConfigs.
    pub const DESCRIBE_CONFIGS: Self = Self(32);
    /// DescribeQuorum.
    pub const DESCRIBE_QUORUM: Self = Self(55);
    /// DescribeCluster.
    pub const DESCRIBE_CLUSTER: Self = Self(60);
    /// DescribeTopicPartitions.
    pub const DESCRIBE_TOPIC_PARTITIONS: Self = Self(75);
    /// ShareFetch.
    pub const SHARE_FETCH: Self = Self(78);
    /// ShareAcknowledge.
    pub const SHARE_ACKNOWLEDGE: Self = Self(79);
    /// AddRaftVoter.
    pub const ADD_RAFT_VOTER: Self = Self(80);
    /// RemoveRaftVoter.
    pub const REMOVE_RAFT_VOTER: Self = Self(81);
}

impl NodeId {
    /// The id clients see for this broker. The mapping is identity today; this is its one place.
    #[must_use]
    pub fn to_virtual(self) -> VirtualNodeId {
        VirtualNodeId(self.0)
    }
}

impl VirtualNodeId {
    /// The real broker behind this id. The mapping is identity today; this is its one place.
    #[must_use]
    pub fn to_real(self) -> NodeId {
        NodeId(self.0)
    }
}
