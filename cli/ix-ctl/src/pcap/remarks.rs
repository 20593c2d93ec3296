//! What there is to say of a packet: why it was dropped, and how its flow group moved.
use ix_dataplane::capture::{Captured, drop_names};

/// Knows where flow groups were last.
#[derive(Default)]
pub struct Remarks {
    homes: Vec<Option<usize>>,
}

impl Remarks {
    /// Of the next packet, in order of time.
    pub fn of(&mut self, packet: &Captured) -> Vec<String> {
        let (mark, thread) = (&packet.mark, packet.thread);
        let mut remarks = Vec::new();
        if packet.lost_before > 0 {
            remarks.push(format!(
                "{} packets of elastic thread {thread} before this one were lost by the capture",
                packet.lost_before
            ));
        }
        if let Some(reason) = mark.dropped {
            let name = drop_names().nth(usize::from(reason)).unwrap_or("?");
            remarks.push(format!("dropped: {name}"));
        }
        if let Some(by) = mark.by_thread {
            remarks.push(format!("received by elastic thread {by}, handed over to {thread}"));
        }
        // A packet that was refused before anybody knew whose it is says nothing of its group.
        let Some(group) = mark.group.map(usize::from) else { return remarks };
        if self.homes.len() <= group {
            self.homes.resize(group + 1, None);
        }
        match self.homes[group].replace(thread) {
            Some(home) if home != thread => remarks.push(format!(
                "flow group {group} has moved from elastic thread {home} to {thread}"
            )),
            _ => {}
        }
        if mark.held {
            remarks.push(format!("waited while flow group {group} moved"));
        }
        remarks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_dataplane::capture::Mark;

    #[test]
    fn drops_losses_and_moves_are_told() {
        let mut remarks = Remarks::default();
        let mut of = |thread, lost_before, mark| {
            remarks.of(&Captured { thread, mark, bytes: Vec::new(), lost_before })
        };
        let group = Mark { group: Some(17), ..Mark::default() };
        assert_eq!(of(0, 0, group), Vec::<String>::new());
        assert_eq!(
            of(1, 2, Mark { held: true, by_thread: Some(0), dropped: Some(0), ..group }),
            [
                "2 packets of elastic thread 1 before this one were lost by the capture".to_owned(),
                format!("dropped: {}", ix_wire::DropReason::ALL[0].name()),
                "received by elastic thread 0, handed over to 1".to_owned(),
                "flow group 17 has moved from elastic thread 0 to 1".to_owned(),
                "waited while flow group 17 moved".to_owned(),
            ]
        );
        assert_eq!(of(1, 0, group), Vec::<String>::new());
        assert_eq!(of(0, 0, Mark::default()), Vec::<String>::new());
    }
}
