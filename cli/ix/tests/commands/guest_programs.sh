#!/bin/sh
# Inside the guest of `.ci/guest`: programs behind the wall, each with a client on Linux's sockets.
#
#     guest_programs.sh IX ECHO CORNERS IX_ECHO IX_KV IX_MORTAL LIBRARY MEMCACHED IX_ATTACKER
#
# The library has the bytes of a key switch in its code.
#
# One line a program, "ok NAME" or "FAILED NAME" with what it said. Status 0: all are ok.
ix=$1 echo=$2 corners=$3 ix_echo=$4 ix_kv=$5 mortal=$6 library=$7 memcached=$8 attacker=$9
own=10.88.0.2 peer=10.88.0.1
failed=0
flags= queues=1

# start DOMAIN WORD PROGRAM...: under `ix run`, until it has said the word.
start() {
    domain=$1 word=$2
    shift 2
    "$ix" run --domain "$domain" $flags --nic "tap:ix0,queues=$queues" --addr $own/16 -- "$@" >/tmp/said 2>&1 &
    service=$!
    for _ in $(seq 200); do ip link show ix0 >/dev/null 2>&1 && break; usleep 100000; done
    ip addr add $peer/16 dev ix0 && ip link set ix0 up
    for _ in $(seq 200); do grep -q "$word" /tmp/said && return; usleep 100000; done
}

stop() {
    kill $service 2>/dev/null
    wait $service
    for _ in $(seq 100); do ip link show ix0 >/dev/null 2>&1 || return; usleep 100000; done
}

# verdict NAME GOOD
verdict() {
    if [ "$2" = yes ]; then echo "ok $1"; return; fi
    failed=1
    echo "FAILED $1"
    cat /tmp/said
}

# ask PORT WORDS...: sends a line for each, answers what comes back within a moment.
ask() {
    port=$1
    shift
    { for line in "$@"; do printf '%s\r\n' "$line"; done; sleep 2; } |
        timeout 20 nc $own "$port" | tr -d '\r'
}

is_echo() { [ "$(ask 7 hello again | tr '\n' ' ')" = "hello again " ] && echo yes; }
is_walled() { grep -q "domain pku" /tmp/said && echo yes; }
both() { [ "$1$2" = yesyes ] && echo yes; }

# away STATE: the program computes before it answers; meanwhile a ping is answered, and `ix ctl` calls the
# elastic thread this. A round in which the answer came too early says nothing.
away() {
    words=1234567812345678
    for _ in $(seq 5); do
        : >/tmp/back
        { printf %s%s%s%s $words $words $words $words; sleep 15; } | timeout 30 nc $own 7 >/tmp/back &
        client=$!
        sleep 1
        ping -c 1 -W 3 $own >/tmp/ping 2>&1 && pinged=yes || pinged=
        "$ix" ctl threads >/tmp/threads 2>&1
        early=$(wc -c </tmp/back)
        wait $client
        [ "$pinged" ] && [ "$early" -lt 64 ] && [ "$(wc -c </tmp/back)" = 64 ] &&
            grep -q "$1" /tmp/threads && echo yes && return
    done
    cat /tmp/ping /tmp/threads >>/tmp/said
}

start pku ready "$echo" 7
verdict "a C program with epoll" "$(both "$(is_echo)" "$(is_walled)")"
stop

flags="--entry loading"
start pku ready "$echo" 7
verdict "a C program that the dataplane has loaded" "$(both "$(is_echo)" "$(is_walled)")"
stop
start pku ready "$ix_echo" 7
verdict "ix-echo that the dataplane has loaded" "$(both "$(is_echo)" "$(is_walled)")"
stop
start pku ready "$ix_kv" -m 64
said=$(ask 11211 "set k 0 0 3" "abc" "get k" | tr '\n' ' ')
verdict "ix-kv that the dataplane has loaded: $said" "$([ "$said" = "STORED VALUE k 0 3 abc END " ] && echo yes)"
stop
flags=

start pku ready "$ix_echo" 8 --work-us 1000000
verdict "the network is served while ix-echo computes, and it is told" "$(away non-responsive)"
stop

start pku ready "$echo" 7 6
verdict "the network is served while a C program computes" "$(away active)"
stop

"$ix" doctor >/tmp/said 2>&1
parts=$(grep -c '^ok  *wall-' /tmp/said)
verdict "ix doctor finds all $parts parts of the wall" \
    "$([ "$parts" = 8 ] && grep -q '^ok  *pku' /tmp/said && echo yes)"

# mortal BYTE STATUS WORDS: a program that ends as a client tells it. Its client sees the connection's end,
# whoever started it the status, and the words.
mortal() {
    start pku ready "$mortal" 7
    rm -f /tmp/closed
    { { printf %s "$1"; sleep 40; } | { timeout 35 nc $own 7 >/dev/null; date +%s >/tmp/closed; }; } &
    began=$(date +%s)
    wait $service
    status=$?
    for _ in $(seq 200); do [ -e /tmp/closed ] && break; usleep 100000; done
    echo "status $status, closed after $(($(cat /tmp/closed) - began)) s" >>/tmp/said
    for _ in $(seq 100); do ip link show ix0 >/dev/null 2>&1 || break; usleep 100000; done
    [ "$status" = "$2" ] && [ $(($(cat /tmp/closed) - began)) -lt 30 ] && grep -q "$3" /tmp/said &&
        echo yes
}
verdict "a fault ends with its address, its status and a closed connection" "$(mortal s 139 0x1234)"
verdict "so does an exit" "$(mortal e 3 ready)"
verdict "so does SIGKILL" "$(mortal K 137 ready)"
verdict "so does abort" "$(mortal a 134 ready)"

# Two dataplanes: the program of one is killed, a connection to the other goes on.
flags="--cpus 0"
"$ix" run --domain pku --cpus 1 --nic tap:ix1 --addr 10.89.0.2/16 -- "$echo" 7 >/tmp/second 2>&1 &
second=$!
for _ in $(seq 200); do ip link show ix1 >/dev/null 2>&1 && break; usleep 100000; done
ip addr add 10.89.0.1/16 dev ix1 && ip link set ix1 up
for _ in $(seq 200); do grep -q ready /tmp/second && break; usleep 100000; done
rm -f /tmp/killed
{ printf 'before\r\n'; until [ -e /tmp/killed ]; do usleep 200000; done; printf 'after\r\n'; sleep 2; } |
    timeout 200 nc 10.89.0.2 7 | tr -d '\r' >/tmp/back &
client=$!
killed=$(mortal K 137 ready)
touch /tmp/killed
wait $client
cat /tmp/second /tmp/back >>/tmp/said
verdict "a second dataplane serves on meanwhile" \
    "$(both "$killed" "$([ "$(tr '\n' ' ' </tmp/back)" = "before after " ] && echo yes)")"
kill $second
wait $second
flags=

# A device whose memory comes later: the interface is removed and made again.
make_link() {
    ip link add ixv0 type veth && ip link set veth0 up && ip link set ixv0 up
    ip addr add $peer/16 dev veth0
}
make_link
"$ix" run --domain pku --nic afxdp:ixv0 --addr $own/16 -- "$ix_echo" 7 >/tmp/said 2>&1 &
service=$!
for _ in $(seq 200); do grep -q ready /tmp/said && break; usleep 100000; done
first=$(is_echo)
ip link del ixv0
for _ in $(seq 200); do grep -q "is gone" /tmp/said && break; usleep 100000; done
make_link
for _ in $(seq 200); do grep -q "up again" /tmp/said && break; usleep 100000; done
verdict "AF_XDP, before and after its interface is made again" "$(both "$first" "$(is_echo)")"
kill $service 2>/dev/null
wait $service
ip link del ixv0 2>/dev/null

export LD_PRELOAD=$library
start pku ready "$echo" 7
unset LD_PRELOAD
told="cannot load $library: its code could change memory rights; .* Offset 0x[0-9a-f]"
named=$(grep -q "$told" /tmp/said && echo yes)
verdict "a library with a key switch is refused by name, the program goes on" \
    "$(both "$(is_echo)" "$named")"
stop

start pku ready "$ix_echo" 7
verdict "ix-echo" "$(is_echo)"
stop

start pku ready "$ix_kv" -m 64
said=$(ask 11211 "set k 0 0 3" "abc" "get k" | tr '\n' ' ')
verdict "ix-kv: $said" "$([ "$said" = "STORED VALUE k 0 3 abc END " ] && echo yes)"
stop

if [ -x "$memcached" ]; then
    start pku "device tap" "$memcached" -l $own -U 11211 -m 16 -t 2
    sleep 2
    said=$(ask 11211 "set k 0 0 3" "abc" "get k" | tr '\n' ' ')
    verdict "memcached: $said" "$([ "$said" = "STORED VALUE k 0 3 abc END " ] && echo yes)"
    stop
fi

if [ -x "$memcached" ]; then
    flags="--cpus 0,1" queues=2
    start pku "device tap" "$memcached" -l $own -U 0 -m 16 -t 2
    sleep 2
    # Until connections have come in on both.
    good=0 made=0 both=
    while [ $made -lt 60 ] && { [ $made -lt 6 ] || [ -z "$both" ]; }; do
        made=$((made + 1))
        said=$(ask 11211 "set k$made 0 0 3" "abc" "get k$made" | tr '\n' ' ')
        [ "$said" = "STORED VALUE k$made 0 3 abc END " ] && good=$((good + 1))
        "$ix" ctl metrics | grep '^ix_accepted_connections_total' >/tmp/accepted
        [ "$(grep -c ' [1-9][0-9]*$' /tmp/accepted)" = 2 ] && both=yes
    done
    cat /tmp/accepted >>/tmp/said
    verdict "memcached on two elastic threads: $good of $made" "$([ $good = $made ] && echo $both)"
    stop
    flags= queues=1
fi

# The socket interface's corners, with the wall and without it: Linux's answers either way.
# With as many descriptors with it as without it.
ulimit -Hn 1024
for domain in none pku; do
    "$corners" peer 9999 >/tmp/peer 2>&1 &
    server=$!
    start $domain . "$corners" run $own $peer 9999
    wait $service
    echo "status $?" >>/tmp/said
    kill $server
    wait $server
    # All ports take more descriptors than the limit, which only root may raise; here nobody is root.
    sed -e '/^ix: /d' -e '/^== ports/,/^status/{/^status/!d}' /tmp/said >/tmp/corners-$domain
    for _ in $(seq 100); do ip link show ix0 >/dev/null 2>&1 || break; usleep 100000; done
done
lines=$(wc -l </tmp/corners-none)
diff /tmp/corners-none /tmp/corners-pku >/tmp/said 2>&1 && same=yes || same=no
verdict "corners of the socket interface, $lines lines" "$([ "$lines" -gt 50 ] && echo $same)"

# walled FLAGS... -- PROGRAM...: behind the wall, or without it.
wall=pku
walled() {
    "$ix" run --domain $wall --posix off --user 65534 --cpus 0 --nic "memif:/tmp/ix-$wall.memif,role=server" \
        --addr 10.9.0.2/24 "$@"
}

# opened USER COMMAND...: what this user has of the memory of programs that this starts five times.
opened() {
    user=$1
    shift
    rm -f /tmp/over
    "$attacker" opens "$user" /tmp/over >/tmp/opened 2>&1 &
    opens=$!
    for _ in $(seq 100); do grep -q opens /tmp/opened && break; usleep 100000; done
    for _ in $(seq 5); do "$@"; done >/tmp/said 2>&1
    echo >/tmp/over
    wait $opens
    tail -1 /tmp/opened
    cat /tmp/opened >>/tmp/said
}

has_none() { echo "$1" | grep -q '; memory of 0' && echo yes; }
another=$(opened 65533 walled -- "$attacker" calls 0 1)
verdict "memory of programs that start, as another tenant's user: $another" "$(has_none "$another")"
own=$(opened 65534 walled -- "$attacker" calls 0 1)
verdict "as their own user: $own" "$(has_none "$own")"
plain=$(opened 65534 su -s /bin/sh nobody -c "usleep 300000")
verdict "of programs outside of ix run it has that: $plain" \
    "$(echo "$plain" | grep -q '; memory of [1-9]' && echo yes)"

# refused TENTHS: a command that brings descriptors, to a program that refuses all control, which may
# end within this time.
refused() {
    rm -f /tmp/captured
    walled -- "$attacker" refuses >/tmp/said 2>&1 &
    service=$!
    for _ in $(seq 300); do grep -q "refuses all" /tmp/said && break; usleep 100000; done
    "$ix" pcap -w /tmp/captured >/tmp/capture 2>&1 &
    capture=$!
    for _ in $(seq "$1"); do kill -0 $service 2>/dev/null || break; usleep 100000; done
    kill -0 $service 2>/dev/null && lives=yes || lives=
    kill -INT $capture 2>/dev/null
    wait $capture
    [ "$lives" ] && kill -KILL $service
    wait $service
    status=$?
    killall -9 ix-attacker 2>/dev/null
    cat /tmp/capture >>/tmp/said
}

refused 600
verdict "a program that refuses all control is ended, status $status" \
    "$([ -z "$lives" ] && [ $status != 0 ] && echo yes)"
wall=none
refused 150
verdict "without the wall it is not" "$lives"
exit $failed
