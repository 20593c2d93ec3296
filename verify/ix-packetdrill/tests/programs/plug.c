/* Makes the calls that packetdrill makes, in its order and with its types: a connection is accepted by
 * a call that blocks on a second thread, text comes and goes, time passes, all in virtual time. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

struct table {
	void *own;
	void (*free)(void *);
	int (*socket)(void *, int, int, int);
	int (*bind)(void *, int, const struct sockaddr *, socklen_t);
	int (*listen)(void *, int, int);
	int (*accept)(void *, int, struct sockaddr *, socklen_t *);
	int (*connect)(void *, int, const struct sockaddr *, socklen_t);
	ssize_t (*read)(void *, int, void *, size_t);
	ssize_t (*readv)(void *, int, const struct iovec *, int);
	ssize_t (*recv)(void *, int, void *, size_t, int);
	ssize_t (*recvfrom)(void *, int, void *, size_t, int, struct sockaddr *, socklen_t *);
	ssize_t (*recvmsg)(void *, int, struct msghdr *, int);
	ssize_t (*write)(void *, int, const void *, size_t);
	ssize_t (*writev)(void *, int, const struct iovec *, int);
	ssize_t (*send)(void *, int, const void *, size_t, int);
	ssize_t (*sendto)(void *, int, const void *, size_t, int, const struct sockaddr *, socklen_t);
	ssize_t (*sendmsg)(void *, int, const struct msghdr *, int);
	int (*fcntl)(void *, int, int, ...);
	int (*ioctl)(void *, int, unsigned long, ...);
	int (*close)(void *, int);
	int (*shutdown)(void *, int, int);
	int (*getsockopt)(void *, int, int, int, void *, socklen_t *);
	int (*setsockopt)(void *, int, int, int, const void *, socklen_t);
	int (*poll)(void *, struct pollfd *, nfds_t, int);
	int (*netdev_send)(void *, const void *, size_t);
	int (*netdev_receive)(void *, void *, size_t *, long long *);
	int (*usleep)(void *, useconds_t);
	int (*gettimeofday)(void *, struct timeval *, struct timezone *);
	int (*epoll_create)(void *, int);
	int (*epoll_ctl)(void *, int, int, int, struct epoll_event *);
	int (*epoll_wait)(void *, int, struct epoll_event *, int, int);
	int (*pipe)(void *, int[2]);
	ssize_t (*splice)(void *, int, loff_t *, int, loff_t *, size_t, unsigned);
};

static struct table t;
static int listener, accepted = -1;

static long long now_us(void)
{
	struct timeval tv;
	assert(t.gettimeofday(t.own, &tv, NULL) == 0);
	return tv.tv_sec * 1000000LL + tv.tv_usec;
}

static unsigned sum(const unsigned char *p, size_t n, unsigned s)
{
	for (size_t i = 0; i < n; i++)
		s += i % 2 ? p[i] : p[i] << 8;
	return s;
}

static unsigned short fold(unsigned s)
{
	while (s >> 16)
		s = (s & 0xffff) + (s >> 16);
	return htons(~s & 0xffff);
}

static void put32(unsigned char *p, unsigned v)
{
	v = htonl(v);
	memcpy(p, &v, 4);
}

static unsigned get32(const unsigned char *p)
{
	unsigned v;
	memcpy(&v, p, 4);
	return ntohl(v);
}

/* A segment of 192.0.2.1:4000 to 192.168.0.1:8080. */
static void inject(unsigned seq, unsigned ack, unsigned char flags, const char *text)
{
	static const unsigned char from[] = { 192, 0, 2, 1 }, to[] = { 192, 168, 0, 1 };
	unsigned char p[1500] = { 0x45 }, *h = p + 20, pseudo[12] = { 0 };
	size_t n = strlen(text), len = 40 + n;
	unsigned short check;
	p[2] = len >> 8, p[3] = len, p[8] = 64, p[9] = 6;
	memcpy(p + 12, from, 4), memcpy(p + 16, to, 4);
	check = fold(sum(p, 20, 0)), memcpy(p + 10, &check, 2);
	h[0] = 4000 >> 8, h[1] = 4000 & 255, h[2] = 8080 >> 8, h[3] = 8080 & 255;
	put32(h + 4, seq), put32(h + 8, ack);
	h[12] = 5 << 4, h[13] = flags, h[14] = h[15] = 0xff;
	memcpy(h + 20, text, n);
	memcpy(pseudo, from, 4), memcpy(pseudo + 4, to, 4);
	pseudo[9] = 6, pseudo[11] = 20 + n;
	check = fold(sum(h, 20 + n, sum(pseudo, 12, 0))), memcpy(h + 16, &check, 2);
	assert(t.netdev_send(t.own, p, len) == 0);
}

static unsigned char packet[2048];

/* The next packet that is sent; answers its time. */
static long long sniff(size_t *len)
{
	long long at;
	*len = sizeof packet;
	assert(t.netdev_receive(t.own, packet, len, &at) == 0);
	assert(*len >= 40 && packet[0] == 0x45 && packet[9] == 6);
	return at;
}

/* A datagram of 192.0.2.1 to 192.168.0.1, without a checksum (RFC 768 allows that). */
static void inject_datagram(unsigned from_port, unsigned port, const char *text)
{
	static const unsigned char from[] = { 192, 0, 2, 1 }, to[] = { 192, 168, 0, 1 };
	unsigned char p[1500] = { 0x45 }, *h = p + 20;
	size_t n = strlen(text), len = 28 + n;
	unsigned short check;
	p[2] = len >> 8, p[3] = len, p[8] = 64, p[9] = 17;
	memcpy(p + 12, from, 4), memcpy(p + 16, to, 4);
	check = fold(sum(p, 20, 0)), memcpy(p + 10, &check, 2);
	h[0] = from_port >> 8, h[1] = from_port, h[2] = port >> 8, h[3] = port;
	h[4] = (8 + n) >> 8, h[5] = 8 + n;
	memcpy(h + 8, text, n);
	assert(t.netdev_send(t.own, p, len) == 0);
}

/* A socket that is connected has a port and a peer; a call that waits on this thread moves time. */
static void datagrams(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(4001) }, from;
	struct sockaddr none = { .sa_family = AF_UNSPEC };
	int fd = t.socket(t.own, AF_INET, SOCK_DGRAM, IPPROTO_UDP), queued = 0;
	socklen_t room = sizeof from;
	size_t len = sizeof packet;
	long long at, before;
	char text[64];

	assert(t.write(t.own, fd, "question", 8) == -1 && errno == EDESTADDRREQ);
	assert(t.connect(t.own, fd, (void *)&to, sizeof to) == 0);
	assert(t.write(t.own, fd, "question", 8) == 8);
	assert(t.netdev_receive(t.own, packet, &len, &at) == 0);
	assert(len == 36 && packet[9] == 17 && !memcmp(packet + 28, "question", 8));
	assert((packet[22] << 8 | packet[23]) == 4001);

	unsigned port = packet[20] << 8 | packet[21];
	inject_datagram(4002, port, "stranger");
	inject_datagram(4001, port, "answer");
	assert(t.ioctl(t.own, fd, FIONREAD, &queued) == 0 && queued == 6);
	assert(t.recv(t.own, fd, text, sizeof text, MSG_PEEK) == 6);
	assert(t.recvfrom(t.own, fd, text, sizeof text, 0, (void *)&from, &room) == 6);
	assert(!memcmp(text, "answer", 6) && room == sizeof from);
	assert(ntohs(from.sin_port) == 4001 && ntohl(from.sin_addr.s_addr) == 0xc0000201);
	assert(t.recv(t.own, fd, text, sizeof text, MSG_DONTWAIT) == -1 && errno == EAGAIN);

	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	before = now_us();
	assert(t.poll(t.own, &pfd, 1, 1000) == 0);
	assert(now_us() >= before + 1000000);

	assert(t.connect(t.own, fd, &none, sizeof none) == 0);
	assert(t.send(t.own, fd, "question", 8, 0) == -1 && errno == EDESTADDRREQ);
	inject_datagram(4002, port, "stranger");
	assert(t.read(t.own, fd, text, sizeof text) == 8);
	assert(t.close(t.own, fd) == 0);
}

static void *accepter(void *unused)
{
	struct sockaddr_in peer;
	socklen_t len = sizeof peer;
	accepted = t.accept(t.own, listener, (void *)&peer, &len);
	assert(accepted >= 0 && len == sizeof peer);
	assert(peer.sin_family == AF_INET && ntohs(peer.sin_port) == 4000);
	assert(ntohl(peer.sin_addr.s_addr) == 0xc0000201);
	return unused;
}

/* A connection over IPv6: the SYN has its header, both addresses and the shorter MSS. */
static void over_ipv6(void)
{
	struct sockaddr_in6 to = { .sin6_family = AF_INET6, .sin6_port = htons(80) };
	unsigned char wanted[32];
	size_t len = sizeof packet;
	long long at;
	int fd;

	assert(inet_pton(AF_INET6, "fd00::1", wanted) == 1);
	assert(inet_pton(AF_INET6, "2001:db8::7", wanted + 16) == 1);
	memcpy(&to.sin6_addr, wanted + 16, 16);
	assert(t.socket(t.own, AF_INET, SOCK_STREAM, 0) == -1 && errno == EAFNOSUPPORT);
	fd = t.socket(t.own, AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0);
	assert(fd > 2);
	assert(t.connect(t.own, fd, (void *)&to, sizeof to) == -1 && errno == EINPROGRESS);
	assert(t.netdev_receive(t.own, packet, &len, &at) == 0);
	assert(len > 64 && packet[0] >> 4 == 6 && packet[6] == 6);
	assert(!memcmp(packet + 8, wanted, 32) && packet[53] == 2);
	assert(packet[60] == 2 && (packet[62] << 8 | packet[63]) == 1440);
	assert(t.close(t.own, fd) == 0);
}

int main(int argc, char **argv)
{
	void (*init)(const char *, struct table *);
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(8080) };
	unsigned iss;
	size_t len;
	pthread_t second;
	void *object;

	assert(argc == 2);
	object = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!object)
		fprintf(stderr, "%s\n", dlerror());
	assert(object);
	*(void **)&init = dlsym(object, "packetdrill_interface_init");
	assert(init);
	init("net.ipv4.tcp_timestamps=0,net.ipv4.tcp_sack=0", &t);

	/* Each look at the clock is later, and sleeping takes no time of ours. */
	long long first = now_us();
	assert(now_us() > first);
	assert(t.usleep(t.own, 900000000) == 0);
	assert(now_us() >= first + 900000000);

	listener = t.socket(t.own, AF_INET, SOCK_STREAM, 0);
	assert(listener > 2 && fcntl(listener, F_GETFD) >= 0);
	assert(t.socket(t.own, AF_INET6, SOCK_STREAM, 0) == -1 && errno == EAFNOSUPPORT);
	assert(t.bind(t.own, listener, (void *)&any, sizeof any) == 0);
	assert(t.listen(t.own, listener, 4) == 0);
	assert(pthread_create(&second, NULL, accepter, NULL) == 0);

	inject(999, 0, 2, "");
	sniff(&len);
	assert(packet[33] == 0x12 && get32(packet + 28) == 1000);
	iss = get32(packet + 24);
	inject(1000, iss + 1, 16, "");
	assert(pthread_join(second, NULL) == 0);

	/* Text comes in, and is read in pieces. */
	inject(1000, iss + 1, 24, "hello, world");
	sniff(&len);
	assert(get32(packet + 28) == 1012);
	char a[5], b[64] = "";
	struct iovec iov[] = { { a, 5 }, { b, 64 } };
	int queued = 0;
	assert(t.ioctl(t.own, accepted, FIONREAD, &queued) == 0 && queued == 12);
	struct pollfd pfd = { .fd = accepted, .events = POLLIN };
	assert(t.poll(t.own, &pfd, 1, 1000) == 1 && pfd.revents == POLLIN);
	assert(t.readv(t.own, accepted, iov, 2) == 12);
	assert(!memcmp(a, "hello", 5) && !strcmp(b, ", world"));
	assert(t.fcntl(t.own, accepted, F_SETFL, O_NONBLOCK) == 0);
	assert(t.fcntl(t.own, accepted, F_GETFL, 0) & O_NONBLOCK);
	assert(t.read(t.own, accepted, a, 5) == -1 && errno == EAGAIN);

	/* Text goes out, as it was written, and again when nobody answers. */
	assert(t.write(t.own, accepted, "answer", 6) == 6);
	long long sent = sniff(&len);
	assert(len == 46 && !memcmp(packet + 40, "answer", 6));
	long long again = sniff(&len);
	assert(len == 46 && again - sent >= 200000 && again - sent < 1100000);
	inject(1012, iss + 7, 16, "");

	/* What scripts ask for in assertions: ESTABLISHED, one retransmission, segments of 536. */
	unsigned char info[104];
	unsigned word;
	socklen_t room = sizeof info;
	assert(t.getsockopt(t.own, accepted, IPPROTO_TCP, 11, info, &room) == 0);
	memcpy(&word, info + 16, 4);
	assert(info[0] == 1 && word == 536);
	memcpy(&word, info + 100, 4);
	assert(word == 1);

	/* Epoll waits in virtual time. */
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 77 };
	int ep = t.epoll_create(t.own, 1);
	assert(ep > 2 && t.epoll_ctl(t.own, ep, EPOLL_CTL_ADD, accepted, &event) == 0);
	assert(t.epoll_wait(t.own, ep, &event, 1, 0) == 0);
	inject(1012, iss + 7, 17, "");
	assert(t.epoll_wait(t.own, ep, &event, 1, -1) == 1 && event.data.u64 == 77);
	sniff(&len);
	assert(t.read(t.own, accepted, a, 5) == 0);

	assert(t.close(t.own, ep) == 0 && t.close(t.own, accepted) == 0);
	assert(t.close(t.own, accepted) == -1 && errno == EBADF);
	sniff(&len);
	assert(packet[33] & 1);
	assert(t.close(t.own, listener) == 0);
	datagrams();
	t.free(t.own);
	init("local=fd00::1,remote=2001:db8::7", &t);
	over_ipv6();
	t.free(t.own);
	puts("as packetdrill expects");
	return 0;
}
