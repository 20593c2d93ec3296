use super::*;
use ix_proto::capture::Protocol;
use ix_wire::IpAddr;
use proptest::prelude::*;
use std::os::fd::FromRawFd;

fn memory(threads: usize, ring_bytes: u64) -> (OwnedFd, Arc<CaptureMemory>) {
    // SAFETY: a plain system call with a constant string.
    let fd = unsafe { libc::memfd_create(c"ix-test".as_ptr(), 0) };
    assert!(fd >= 0);
    // SAFETY: a fresh descriptor that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let bytes = CaptureMemory::bytes_for(threads, ring_bytes) as i64;
    // SAFETY: a plain system call on our descriptor.
    assert_eq!(unsafe { libc::ftruncate(std::os::fd::AsRawFd::as_raw_fd(&fd), bytes) }, 0);
    let memory = CaptureMemory::create(fd.as_fd(), threads).expect("made");
    (fd, Arc::new(memory))
}

fn mark(i: u64) -> Mark {
    let small = |n: u64| i.is_multiple_of(n).then_some(i as u8);
    let (group, by_thread, dropped) = (small(2), small(3), small(5));
    let (sent, held) = (i.is_multiple_of(7), i.is_multiple_of(11));
    Mark { time_us: i * 1000, len: i as u32, port: i as u8, sent, group, held, by_thread, dropped }
}

#[test]
fn what_is_written_is_read_in_another_mapping() {
    let (fd, memory) = memory(3, 64 << 10);
    let mut writer = RingWriter::new(memory, 1);
    let opened = Arc::new(CaptureMemory::open(fd.as_fd()).expect("opened"));
    assert_eq!(opened.threads(), 3);
    let mut reader = RingReader::new(opened.clone(), 1);
    assert_eq!(reader.next(), None);
    for i in 0..5000u64 {
        let bytes: Vec<u8> = (0..i % 300).map(|n| (n + i) as u8).collect();
        let (a, b) = bytes.split_at(bytes.len() / 3);
        writer.stage(200, [a, b].into_iter());
        if i % 9 == 8 {
            // The filter did not match it.
            continue;
        }
        writer.publish(&mark(i));
        let got = reader.next().expect("published");
        let kept = bytes[..bytes.len().min(200)].to_vec();
        assert_eq!(got, Captured { thread: 1, mark: mark(i), bytes: kept, lost_before: 0 });
        assert_eq!(reader.next(), None);
    }
    assert_eq!(RingReader::new(opened, 0).next(), None, "the rings are apart");
}

#[test]
fn a_slow_reader_loses_and_knows_how_many() {
    let (_fd, memory) = memory(1, 64 << 10);
    let mut writer = RingWriter::new(memory.clone(), 0);
    let mut reader = RingReader::new(memory, 0);
    let mut write = |i: u64| {
        writer.stage(1000, std::iter::once(&[i as u8; 1000][..]));
        writer.publish(&mark(i));
    };
    (0..1000).for_each(&mut write);
    assert_eq!(reader.next(), None, "all of it was overwritten before it was read");
    (1000..1003).for_each(&mut write);
    let first = reader.next().expect("a packet");
    assert_eq!((first.lost_before, first.mark), (1000, mark(1000)));
    assert_eq!(reader.next().map(|next| (next.lost_before, next.mark)), Some((0, mark(1001))));
}

/// A reader beside a faster writer sees whole packets, in order, and counts the others.
#[test]
fn no_record_is_torn() {
    const PACKETS: u64 = 40_000;
    let (fd, memory) = memory(1, 64 << 10);
    let mut writer = RingWriter::new(memory, 0);
    let opened = Arc::new(CaptureMemory::open(fd.as_fd()).expect("opened"));
    let mut reader = RingReader::new(opened, 0);
    std::thread::scope(|scope| {
        let written = scope.spawn(move || {
            for i in 0..PACKETS {
                writer.stage(1500, std::iter::once(&[i as u8; 1500][..(i % 1500) as usize]));
                writer.publish(&mark(i));
            }
        });
        let mut expected = 0;
        loop {
            let over = written.is_finished();
            for got in reader.by_ref() {
                expected += got.lost_before;
                assert_eq!(got.mark, mark(expected));
                assert_eq!(got.bytes, vec![expected as u8; (expected % 1500) as usize]);
                expected += 1;
            }
            if over {
                break;
            }
        }
        assert!(expected <= PACKETS);
    });
}

#[test]
fn strange_memory_is_refused() {
    let (fd, made) = memory(2, 64 << 10);
    drop(made);
    assert!(CaptureMemory::create(fd.as_fd(), 200).is_err(), "no room for so many");
    // SAFETY: a plain system call on our descriptor.
    unsafe { libc::ftruncate(std::os::fd::AsRawFd::as_raw_fd(&fd), 70_000) };
    assert!(CaptureMemory::open(fd.as_fd()).is_err(), "shorter than it says");
    // SAFETY: as above.
    unsafe { libc::ftruncate(std::os::fd::AsRawFd::as_raw_fd(&fd), 0) };
    assert!(CaptureMemory::open(fd.as_fd()).is_err());
}

fn tcp() -> Subject {
    Subject {
        protocol: Some(Protocol::Tcp),
        src: Some(IpAddr::v4([10, 0, 0, 1])),
        dst: Some(IpAddr::v4([10, 0, 0, 2])),
        ports: Some((4000, 80)),
        group: Some(7),
        thread: 1,
        dropped: false,
        sent: false,
    }
}

#[test]
fn filters_say_what_they_say() {
    for (text, takes) in [
        ("", true),
        ("tcp", true),
        ("udp or icmp", false),
        ("tcp and port 80", true),
        ("port 81", false),
        ("host 10.0.0.1 and host 10.0.0.2", true),
        ("not host 10.0.0.1", false),
        ("flow 10.0.0.1:4000", true),
        ("flow 10.0.0.2:80", false),
        ("group 7 and thread 1 and in", true),
        ("drops", false),
        ("udp and port 80 or group 7", true),
        ("udp and (port 80 or group 7)", false),
        ("not (arp or not not tcp)", false),
        ("not out and not drops", true),
    ] {
        let filter: Filter = text.parse().expect(text);
        assert_eq!(tcp().is_taken_by(&filter), takes, "{text}");
    }
    let deep = "not ".repeat(100) + "tcp";
    for wrong in
        ["port", "port x", "tcp udp", "(tcp", "tcp)", "or", "group 128", "flow 1.2.3.4", &deep]
    {
        assert!(wrong.parse::<Filter>().is_err(), "{wrong}");
    }
}

/// A device's frames have no tag before they reach it; on the link they have.
#[test]
fn frames_are_shown_with_the_tag_of_their_device() {
    let (fd, _) = memory(1, 64 << 10);
    let opened = Arc::new(CaptureMemory::open(fd.as_fd()).expect("opened"));
    let captures = Captures::default();
    let order = CaptureOrder::Start { snaplen: 40, filter: Filter::All };
    assert!(matches!(captures.obey(order, Some(fd), 1), Outcome::Done));
    let vlans = [None, ix_wire::VlanId::new(5)];
    let mut sniffer = Sniffer::new(&captures, 0, vlans.into_iter()).expect("it runs");
    let mut reader = RingReader::new(opened, 0);
    let frame: Vec<u8> = (0..60).collect();
    let tagged = [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat();
    for (port, wanted) in [(0, &frame), (1, &tagged)] {
        let (head, tail) = frame.split_at(20);
        let staged = sniffer.arriving(port, head, std::iter::once(tail));
        sniffer.arrived(staged, Mark { port, len: staged.len(), ..Mark::default() });
        sniffer.leaving(port.into(), [[head, tail].into_iter()].into_iter(), 0, |_| 0);
        for _ in 0..2 {
            let got = reader.next().expect("captured");
            assert_eq!((got.mark.len as usize, &got.bytes[..]), (wanted.len(), &wanted[..40]));
        }
    }
    // Shorter than its addresses.
    let staged = sniffer.arriving(1, &frame[..3], std::iter::empty());
    assert_eq!(staged.len(), 7);
}

#[test]
fn frames_are_read_leniently() {
    assert_eq!(Subject::of(&[], false), Subject::default());
    let mut frame = vec![0; 60];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[23] = 6;
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..38].copy_from_slice(&[15, 160, 0, 80]);
    assert_eq!(Subject::of(&frame, false), Subject { group: None, thread: 0, ..tcp() });
    assert_eq!(Subject::of(&frame, true).peer(), Some((IpAddr::v4([10, 0, 0, 2]), 80)));
    let tuple = Subject::of(&frame, true).tuple().expect("a flow");
    assert_eq!((tuple.local_port, tuple.remote_port), (4000, 80));
    frame[21] = 1;
    assert_eq!(Subject::of(&frame, false).ports, None, "a later fragment has none");
}

proptest! {
    #[test]
    fn no_frame_and_no_text_harms(
        frame in prop::collection::vec(any::<u8>(), 0..80),
        text in "[a-z0-9 ().:]{0,80}",
    ) {
        let subject = Subject::of(&frame, true);
        let _ = (subject.peer(), subject.tuple());
        if let Ok(filter) = text.parse::<Filter>() {
            let _ = subject.is_taken_by(&filter);
        }
    }
}
