// gVisor's netstack as a peer: one connection, played as the arguments say.
//
// Standard input is a datagram socket with IP packets both ways; the first datagram is the word to
// begin. What became of the conversation is one line on standard output.
package main

import (
	"context"
	"fmt"
	"math/bits"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const nic = 1

var ours = tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFrom4([4]byte{10, 0, 0, 2}), Port: 4002}
var theirs = tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFrom4([4]byte{10, 0, 0, 1}), Port: 4001}

func number(index int) int {
	n, err := strconv.Atoi(os.Args[index])
	must(err)
	return n
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "netstack:", err)
		os.Exit(1)
	}
}

func mustTCP(err tcpip.Error) {
	if err != nil {
		must(fmt.Errorf("%s", err))
	}
}

func pattern(at int) byte {
	return byte(bits.RotateLeft32(uint32(at)*2654435761, 8))
}

func makeStack(mtu, bufferBytes int, sack bool) (*stack.Stack, *channel.Endpoint) {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	sackOn := tcpip.TCPSACKEnabled(sack)
	mustTCP(s.SetTransportProtocolOption(tcp.ProtocolNumber, &sackOn))
	size := tcpip.TCPReceiveBufferSizeRangeOption{Min: 1, Default: bufferBytes, Max: bufferBytes}
	mustTCP(s.SetTransportProtocolOption(tcp.ProtocolNumber, &size))
	link := channel.New(4096, uint32(mtu), "")
	mustTCP(s.CreateNIC(nic, link))
	mustTCP(s.AddProtocolAddress(nic, tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: ours.Addr, PrefixLen: 24},
	}, stack.AddressProperties{}))
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	return s, link
}

// carry moves packets between the stack and standard input, until that ends.
func carry(link *channel.Endpoint) {
	go func() {
		for {
			packet := link.ReadContext(context.Background())
			if packet == nil {
				return
			}
			view := packet.ToView()
			// A full socket loses packets, as wires do.
			syscall.Write(0, view.AsSlice())
			view.Release()
			packet.DecRef()
		}
	}()
	for {
		bytes := make([]byte, 65536)
		n, err := syscall.Read(0, bytes)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n == 0 {
			os.Exit(0)
		}
		packet := stack.NewPacketBuffer(stack.PacketBufferOptions{
			Payload: buffer.MakeWithData(bytes[:n]),
		})
		link.InjectInbound(ipv4.ProtocolNumber, packet)
		packet.DecRef()
	}
}

func open(s *stack.Stack, active bool, begin func()) (tcpip.Endpoint, *waiter.Queue) {
	var queue waiter.Queue
	endpoint, err := s.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, &queue)
	mustTCP(err)
	mustTCP(endpoint.Bind(ours))
	events := waiter.ReadableEvents
	if active {
		events = waiter.WritableEvents
	}
	entry, ready := waiter.NewChannelEntry(events)
	queue.EventRegister(&entry)
	defer queue.EventUnregister(&entry)
	if active {
		begin()
		err := endpoint.Connect(theirs)
		if _, started := err.(*tcpip.ErrConnectStarted); !started {
			mustTCP(err)
		}
		<-ready
		mustTCP(endpoint.LastError())
		return endpoint, &queue
	}
	mustTCP(endpoint.Listen(1))
	begin()
	for {
		accepted, acceptedQueue, err := endpoint.Accept(nil)
		if err == nil {
			return accepted, acceptedQueue
		}
		<-ready
	}
}

func main() {
	active, sends, waits := os.Args[1] == "active", number(2), number(3) == 1
	abortsAt, readsFrom := number(4), time.Duration(number(5))*time.Millisecond
	s, link := makeStack(number(6), number(7), number(8) == 1)
	endpoint, queue := open(s, active, func() {
		syscall.Read(0, make([]byte, 16))
		go carry(link)
	})
	conn := gonet.NewTCPConn(queue, endpoint)
	begun := time.Now()
	ended := make(chan struct{})
	var writing sync.WaitGroup
	writing.Add(1)
	go func() {
		defer writing.Done()
		data := make([]byte, sends)
		for at := range data {
			data[at] = pattern(at)
		}
		if _, err := conn.Write(data); err != nil {
			return
		}
		if waits {
			<-ended
		}
		if abortsAt < 0 {
			conn.CloseWrite()
		}
	}()
	got, right, how := 0, true, "end"
	time.Sleep(time.Until(begun.Add(readsFrom)))
	data := make([]byte, 65536)
	for {
		if abortsAt >= 0 && got >= abortsAt {
			endpoint.SocketOptions().SetLinger(tcpip.LingerOption{Enabled: true, Timeout: 0})
			conn.Close()
			how = "aborted"
			break
		}
		n, err := conn.Read(data)
		for at := 0; at < n; at++ {
			right = right && data[at] == pattern(got+at)
		}
		got += n
		if err != nil {
			if err.Error() != "EOF" {
				how = "reset"
			}
			break
		}
	}
	close(ended)
	if how != "aborted" {
		writing.Wait()
	}
	fmt.Printf("got %d %t %s\n", got, right, how)
	select {}
}
