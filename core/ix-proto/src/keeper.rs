//! What runs say to the keeper of an interface whose addresses IX shares with Linux, and what it
//! answers: one message, one answer.
use crate::codec::{codec_enum, codec_struct};
use ix_wire::{IpAddr, MacAddr};

/// What a run says. The first one is [`ToKeeper::Join`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToKeeper {
    /// It wants to share the interface of this number at these addresses of Linux.
    Join {
        /// The interface.
        ifindex: u32,
        /// Queues that a link for it should have.
        threads: u32,
        /// The addresses.
        addresses: Vec<IpAddr>,
    },
    /// It has attached the program, whose descriptors come along: link, then the maps in the order
    /// of [`MAPS`].
    Own(Owned),
    /// Linux's addresses have changed. Answered when packets are judged by them.
    Addresses {
        /// Those that it shares, and the groups that its sockets listen to.
        addresses: Vec<IpAddr>,
        /// Those that stay Linux's alone: Linux has a port there that the run has elsewhere.
        alone: Vec<IpAddr>,
    },
    /// It ends in order. Answered when nothing of it is left.
    Leave,
    /// It claims a port, by its place in the map of ports. Refused if another run has it.
    Take {
        /// The place.
        port: u32,
    },
}

codec_enum!(ToKeeper {
    0 = Join { ifindex, threads, addresses },
    1 = Own(owned),
    2 = Addresses { addresses, alone },
    3 = Leave,
    4 = Take { port },
});

/// The maps of the program, as they are sent.
pub const MAPS: [&str; 6] = ["ports", "fragments", "fragments6", "owners", "links", "sockets"];

/// The program on the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The interface's number.
    pub ifindex: u32,
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// Places in the map of sockets.
    pub room: u32,
    /// The program takes frames of several buffers.
    pub frags: bool,
    /// It runs behind the driver.
    pub generic: bool,
    /// Where it runs, in words.
    pub text: String,
}

codec_struct!(Owned { ifindex, mac, mtu, room, frags, generic, text });

/// What the keeper answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromKeeper {
    /// The interface has no program yet: the run is to attach one, whose ports are those of this
    /// owner.
    First {
        /// Its number.
        owner: u32,
    },
    /// The program is there, with the descriptors as in [`ToKeeper::Own`], and nobody has the
    /// queues: they are this owner's.
    Queues {
        /// Its number.
        owner: u32,
        /// The program.
        owned: Owned,
    },
    /// Another run has the queues: this owner has a link instead. The map of ports comes along.
    Link {
        /// Its number.
        owner: u32,
        /// The end of the link that it opens.
        name: String,
    },
    /// It is done.
    Done,
    /// It cannot be done.
    Refused(String),
}

codec_enum!(FromKeeper {
    0 = First { owner },
    1 = Queues { owner, owned },
    2 = Link { owner, name },
    3 = Done,
    4 = Refused(why),
});
