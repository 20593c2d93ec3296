//! Packing and unpacking flow groups: what belongs to them beside the flows themselves.
use super::message::{Forwarded, Ship};
use crate::context::Context;
use crate::flows::Flows;
use crate::flows::handle::FlowId;
use crate::shared::mourning::UnderWay;
use crate::tcp::listeners::Listeners;
use ix_proto::GroupSet;
use ix_proto::MigrationRecord;
use std::collections::VecDeque;

/// Removes groups from this thread. The packets that were built for them and not sent must still be
/// added.
pub(crate) fn pack(
    cx: &mut Context,
    flows: &mut Flows,
    listeners: &mut Listeners,
    (serial, groups): (u64, &GroupSet),
    packets: VecDeque<Forwarded>,
    mut record: MigrationRecord,
) -> Ship {
    flows.finish_relink(groups, cx.now_us);
    let waiting = listeners.leave(&mut flows.groups, groups);
    flows.leave_crowd(groups);
    let boxes = flows.take_groups(cx, groups);
    record.flows = boxes.iter().map(|group| group.flows()).sum::<usize>() as u32;
    let of_them = |id: &FlowId| groups.contains(usize::from(id.group));
    let touched = flows.touched.extract_if(.., |id| of_them(id)).collect();
    let of_these = |handle: &u64| of_them(&FlowId::from_handle(*handle));
    let to_announce = cx.attached.take_announcements(of_these);
    let to_announce = to_announce.into_iter().map(FlowId::from_handle).collect();
    let frames = boxes.iter().map(|group| take_frames(cx, usize::from(group.id()))).collect();
    for item in &packets {
        if let Forwarded::Packet { packet, .. } = item {
            cx.rx_pool.disown(&packet.mbuf);
        }
    }
    Ship {
        serial,
        groups: boxes,
        frames,
        touched,
        to_announce,
        waiting,
        cookies: listeners.cookies(cx.now_us),
        packets,
        fences: Vec::new(),
        queued: false,
        unsent: Vec::new(),
        record,
        now_us: cx.now_us,
        under_way: Some(UnderWay::new(cx.shared.clone())),
    }
}

/// Removes the count of frames that a group's flows hold, and of bytes that they have promised.
/// They go with the group.
fn take_frames(cx: &mut Context, group: usize) -> (u32, u64) {
    let frames = std::mem::take(&mut cx.flow_frames[group]);
    cx.rx_pool.disown_many(frames as usize);
    let promised = cx.promises.of(group);
    cx.promises.set(group, 0);
    (frames, promised)
}

/// Adds groups to this thread.
pub(crate) fn unpack(cx: &mut Context, flows: &mut Flows, listeners: &mut Listeners, ship: Ship) {
    for (group, (frames, promised)) in ship.groups.into_iter().zip(ship.frames) {
        cx.flow_frames[usize::from(group.id())] = frames;
        cx.promises.set(usize::from(group.id()), promised);
        cx.rx_pool.adopt_many(frames as usize);
        flows.put_group(cx, group);
    }
    if cx.shared.updates.surveys.is_running() {
        cx.shared.updates.order_survey(cx.index);
    }
    listeners.join(&mut flows.groups, &ship.waiting);
    for (addr, port, until_us) in ship.cookies {
        listeners.expect_cookies_at(addr, port, until_us);
    }
}
