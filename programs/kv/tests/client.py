"""Uses a memcached server through libmemcached's client and prints what it saw: two servers that
behave alike print the same. Argument: HOST:PORT."""
import sys
import time

import pylibmc


def attempt(name, action):
    try:
        print(name, action())
    except pylibmc.Error as error:
        print(name, type(error).__name__)


def session(server, binary):
    client = pylibmc.Client([server], binary=binary)
    client.behaviors = {"cas": True, "tcp_nodelay": True}
    client.flush_all()
    print("binary" if binary else "ascii")
    attempt("set", lambda: client.set("text", "a value"))
    attempt("get", lambda: client.get("text"))
    attempt("missing", lambda: client.get("nothing"))
    for value in [b"", b"bytes\r\n\0", 17, 3.5, {"a": [1, 2]}, "ü" * 1000, b"x" * 1023, b"y" * 1025]:
        attempt("kind", lambda: client.set("kind", value))
        print(client.get("kind") == value)
    for size in [100_000, 900_000]:
        blob = bytes(range(256)) * (size // 256)
        attempt("large", lambda: client.set("large", blob))
        print(client.get("large") == blob, client.get("large") == blob)
    attempt("add", lambda: (client.add("text", 1), client.add("fresh", 2)))
    attempt("replace", lambda: (client.replace("text", 1), client.replace("none", 2)))
    attempt("append", lambda: (client.set("s", "b"), client.append("s", "c"), client.prepend("s", "a")))
    attempt("joined", lambda: client.get("s"))
    attempt("incr", lambda: (client.set("n", 9), client.incr("n", 5), client.decr("n", 4)))
    attempt("incr missing", lambda: client.incr("none"))
    if not binary:  # libmemcached takes the server for dead otherwise, whichever it is.
        attempt("incr text", lambda: client.incr("s"))
    attempt("delete", lambda: (client.delete("s"), client.delete("s")))
    value, cas = client.gets("n")
    attempt("cas", lambda: (value, client.cas("n", 1, cas), client.cas("n", 2, cas)))
    many = {f"key{number}": "v" * number for number in range(300)}
    attempt("set_multi", lambda: client.set_multi(many))
    print("get_multi", client.get_multi(list(many) + ["none"]) == many)
    attempt("delete_multi", lambda: client.delete_multi(list(many)))
    print("gone", client.get_multi(list(many)))
    attempt("touch", lambda: (client.touch("n", 100), client.touch("none", 100)))
    attempt("expires", lambda: client.set("brief", 1, time=1))
    time.sleep(2.1)
    attempt("expired", lambda: client.get("brief"))
    attempt("long key", lambda: client.set("k" * 250, 1) and client.get("k" * 250))
    stats = client.get_stats()[0][1]
    print("stats", all(name.encode() in stats or name in stats for name in ["pid", "get_hits"]))
    attempt("flush", lambda: (client.flush_all(), client.get("n")))
    # The client may take the server for dead after this.
    attempt("too large", lambda: client.set("large", b"z" * 2_000_000))


for protocol in [False, True]:
    session(sys.argv[1], protocol)
