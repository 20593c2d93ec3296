//! UDP: sockets of one elastic thread, datagrams in and out.
use ix_abi::error;
use crate::receive::Work;
use crate::thread::ElasticThread;
use ix_wire::UdpPacket;

impl ElasticThread {
    pub(crate) fn handle_udp(&mut self, work: Work, _packet: &UdpPacket) { self.give_back(work) }
    pub(crate) fn call_udp_bind(&mut self, _args: &[u64; 6]) -> Result<i64, i64> { Err(error::NO_SYS) }
    pub(crate) fn call_udp_unbind(&mut self, _id: u64) -> Result<i64, i64> { Err(error::NO_SYS) }
    pub(crate) fn call_udp_sendv(&mut self, _args: &[u64; 6]) -> Result<i64, i64> { Err(error::NO_SYS) }
    pub(crate) fn call_udp_recv_done(&mut self, _id: u64) -> Result<i64, i64> { Err(error::NO_SYS) }
}
