//! The messages of Perfetto's trace format, with those fields that are written here.
//!
//! Names and numbers are those of the `.proto` files in `protos/perfetto/trace` of
//! <https://github.com/google/perfetto>. A `oneof` is written as optional fields of which one is
//! set: the bytes are the same.

use prost::Message;

/// `TracePacket::SEQ_INCREMENTAL_STATE_CLEARED`: interned strings begin anew.
pub(super) const INCREMENTAL_STATE_CLEARED: u32 = 1;
/// `TracePacket::SEQ_NEEDS_INCREMENTAL_STATE`: the packet refers to interned strings.
pub(super) const NEEDS_INCREMENTAL_STATE: u32 = 2;

/// `Trace` of `trace.proto`. Traces that follow one another in a file are one trace.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Packets {
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<TracePacket>,
}

/// `TracePacket` of `trace_packet.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacket {
    /// In nanoseconds.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
}

/// `TrackDescriptor` of `track_event/track_descriptor.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    #[prost(enumeration = "ChildTracksOrdering", optional, tag = "11")]
    pub child_ordering: Option<i32>,
    /// The position among the children of its parent: lower ranks come first.
    #[prost(int32, optional, tag = "12")]
    pub sibling_order_rank: Option<i32>,
}

/// `TrackDescriptor.ChildTracksOrdering` of `track_event/track_descriptor.proto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum ChildTracksOrdering {
    Unknown = 0,
    Explicit = 3,
}

/// `TrackEvent` of `track_event/track_event.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    #[prost(enumeration = "EventType", optional, tag = "9")]
    pub r#type: Option<i32>,
    #[prost(uint64, optional, tag = "10")]
    pub name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    #[prost(string, optional, tag = "23")]
    pub name: Option<String>,
    #[prost(uint64, optional, tag = "52")]
    pub correlation_id: Option<u64>,
}

/// `TrackEvent.Type` of `track_event/track_event.proto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum EventType {
    Unspecified = 0,
    SliceBegin = 1,
    SliceEnd = 2,
    Instant = 3,
}

/// `DebugAnnotation` of `track_event/debug_annotation.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DebugAnnotation {
    #[prost(uint64, optional, tag = "1")]
    pub name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub uint_value: Option<u64>,
    #[prost(uint64, optional, tag = "17")]
    pub string_value_iid: Option<u64>,
}

/// `InternedData` of `interned_data/interned_data.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<InternedName>,
    #[prost(message, repeated, tag = "3")]
    pub debug_annotation_names: Vec<InternedName>,
    #[prost(message, repeated, tag = "29")]
    pub debug_annotation_string_values: Vec<InternedString>,
}

/// `EventName` of `track_event/track_event.proto` and `DebugAnnotationName` of
/// `track_event/debug_annotation.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedName {
    /// Not 0.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

/// `InternedString` of `profiling/profile_common.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedString {
    /// Not 0.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub str: Option<Vec<u8>>,
}
