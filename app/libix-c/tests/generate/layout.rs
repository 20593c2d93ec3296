//! Sizes and offsets, as the compiler has them.
use ix_abi::{
    CallSlot, EventSlot, FlowInfo, PacketInfo, ProcessHeader, SgEntry, ThreadArea, ThreadStatus,
};
use ix_c::event_loop::ix_callbacks;
use ix_c::packet::{ix_packet, ix_packet_piece};
use ix_c::types::ix_endpoint;
use std::mem::offset_of;

/// A structure: its name, size and alignment, and of each field name, offset and size.
pub struct Layout {
    pub name: &'static str,
    pub size: usize,
    pub align: usize,
    pub fields: Vec<(&'static str, usize, usize)>,
}

/// The layout of a structure. A field that is not named does not compile.
macro_rules! layout {
    ($name:ident { $($field:ident),* $(,)? }) => {{
        fn sizes(value: &$name) -> Vec<usize> {
            let $name { $($field),* } = value;
            vec![$(size_of_val($field)),*]
        }
        // SAFETY: all-zero is a valid value of these plain structures (numbers, and no function).
        let sizes = sizes(&unsafe { std::mem::zeroed::<$name>() });
        let places = [$((stringify!($field), offset_of!($name, $field))),*];
        let fields = places.into_iter().zip(sizes).map(|((name, at), size)| (name, at, size));
        Layout {
            name: stringify!($name),
            size: size_of::<$name>(),
            align: align_of::<$name>(),
            fields: fields.collect(),
        }
    }};
}

/// Of all structures of the header.
pub fn layouts() -> Vec<Layout> {
    vec![
        layout!(CallSlot { op, reserved, ret, args }),
        layout!(EventSlot { kind, code, len, cookie, handle, data, addr, port, notes, more }),
        layout!(SgEntry { base, len }),
        layout!(FlowInfo {
            local_addr,
            remote_addr,
            local_port,
            remote_port,
            state,
            flow_group,
            srtt_us,
            rttvar_us,
            rto_us,
            cwnd_bytes,
            ssthresh_bytes,
            snd_wnd_bytes,
            in_flight_bytes,
            mss_bytes,
            retransmits,
            flags,
            advmss_bytes,
            rcv_mss_bytes,
            rcv_wnd_bytes,
            snd_unsent_bytes,
            min_rtt_us,
            last_sent_ms,
            last_heard_ms,
            unacked_segments,
            sacked_segments,
            lost_segments,
            reordering_segments,
            backoff,
            probes,
            recovery,
            bytes_acked,
            bytes_received,
            rwnd_limited_us,
        }),
        layout!(PacketInfo { mac, device, frame_bytes_max, flags, queues_max, held_max }),
        layout!(ix_packet { data, bytes, number }),
        layout!(ix_packet_piece { buffer, packet, from, bytes }),
        layout!(ProcessHeader {
            magic,
            version,
            threads,
            gate,
            thread_areas,
            rx_base,
            rx_len,
            tx_base,
            tx_len,
            local_addr,
            mss_bytes,
            batch_bound,
        }),
        layout!(ThreadArea { calls, events, status, cpu, attachment, will }),
        layout!(ThreadStatus { now_us, signal_pending, reserved }),
        layout!(ix_endpoint { addr, port, reserved }),
        layout!(ix_callbacks {
            size,
            accepted,
            connected,
            readable,
            sent,
            writable,
            eof,
            dead,
            datagram,
            timer,
            cycle,
            idle,
            migrate_out,
            migrate_in,
            revoke,
            restore,
            packets,
            packet_sent,
            signal,
            datagram_error,
        }),
    ]
}
