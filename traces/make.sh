#!/bin/bash
# Records the bundled traces anew. Usage: traces/make.sh [NAME…]   (see README.md)
# Needs `cargo build --release` done, and the programs recorded; one that is missing is skipped.
set -u
cd "$(dirname "$0")/.." || exit
root=$PWD
hectare=$(realpath "${HECTARE:-target/release/hectare}") || exit
traces=$root/traces
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
# A trace holds the command that was recorded: from here on paths of this machine are relative.
cd "$work" || exit

record() { # NAME CMD…: times to 1 µs, which is all that the order and the paced mode need
    local name=$1; shift
    command -v "$1" >/dev/null || { echo "skipped: $name ($1 is not installed)"; return; }
    "$hectare" record --tick-ns 1000 -o "$traces/$name.hxt" -- "$@" >"$name.out" || failed=1
}

python-ast() { # an interpreter: Python parses one of its own modules and prints the tree
    PYTHONMALLOC=malloc record python-ast \
        /usr/bin/python3 -m ast /usr/lib/python3.11/argparse.py
}

compiler() { # a compiler: gcc compiles a C file of 25 000 lines after preprocessing
    cat >unit.c <<'C'
#define _GNU_SOURCE
#include <ctype.h>
#include <math.h>
#include <netdb.h>
#include <pthread.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
C
    cat "$root/crates/recorder/tests/program.c" >>unit.c
    record cc1 gcc -O2 -pthread -c ./unit.c -o /dev/null
}

key-value() { # a key-value server under load, with the allocator of the C library
    cat >redis.sh <<'S'
redis-server --port 0 --unixsocket ./socket --save "" --appendonly no --daemonize no &
server=$!
while [ ! -S socket ]; do sleep 0.05; done
load() { LD_PRELOAD= redis-benchmark -s ./socket -q -n 12000 -r 4000 "$@"; }
load -t set,get,lpush,lpop,sadd,hset,zadd -d 200
load -t set -d 3000
kill "$server"; wait
S
    record redis bash redis.sh
}

database() { # a database: insert, index, join, update, delete in memory
    cat >load.sql <<'S'
CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price REAL, note TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 40000)
  INSERT INTO item SELECT i, printf('item %08x', i*2654435761 & 0xffffffff), i%997*0.25,
    substr(hex(zeroblob(i%150)), 1, i%300) FROM n;
CREATE INDEX by_name ON item(name);
CREATE INDEX by_price ON item(price, name);
SELECT count(*), sum(a.price) FROM item a JOIN item b ON b.id = (a.id*7919)%40000+1
  WHERE a.name > b.name;
SELECT price, group_concat(name) FROM item GROUP BY price ORDER BY 1 LIMIT 5;
UPDATE item SET note = upper(name)||note WHERE id%3 = 0;
DELETE FROM item WHERE id%5 = 0;
SELECT json_group_array(json_object('id', id, 'name', name)) FROM item WHERE id < 2000;
S
    record sqlite sqlite3 :memory: ".read ./load.sql"
}

linker() { # many threads: the Rust toolchain's linker on 16 threads joins the std of Rust
    local sysroot lib
    sysroot=$(rustc --print sysroot) || return
    ln -s "$sysroot" sysroot
    lib=sysroot/lib/rustlib/x86_64-unknown-linux-gnu
    record lld $lib/bin/rust-lld -flavor gnu --threads=16 -shared --icf=all -O2 \
        --noinhibit-exec --allow-multiple-definition --whole-archive $lib/lib/*.rlib \
        -o lld.out
}

python-http() { # many threads that come and go: Python's web server, one thread a request
    cat >http.sh <<'S'
cd /usr/share/doc
PYTHONMALLOC=malloc /usr/bin/python3 -m http.server --bind 127.0.0.1 8123 2>/dev/null &
server=$!
LD_PRELOAD= /usr/bin/python3 - <<'P'
import threading, time, urllib.request
def get():
    return urllib.request.urlopen("http://127.0.0.1:8123/").read()
for _ in range(100):
    try: get(); break
    except OSError: time.sleep(0.05)
def many():
    for _ in range(5): get()
threads = [threading.Thread(target=many) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
P
kill "$server"; wait
S
    record python-http bash http.sh
}

javascript() { # a JavaScript engine with its pool of threads: objects to JSON, compressed, and hashes
    cat >app.js <<'S'
const items = [];
for (let i = 0; i < 20000; i++) items.push({ i, name: "item " + i, tags: [i % 7, i % 11] });
const text = JSON.stringify(items);
const zlib = require("zlib"), crypto = require("crypto");
for (let n = 0; n < 24; n++)
  zlib.gzip(text.slice(0, 40000 * (n + 1)), (e, z) => zlib.gunzip(z, () => {}));
for (let n = 0; n < 64; n++) crypto.pbkdf2("secret", "salt" + n, 500, 64, "sha512", () => {});
S
    record node node ./app.js
}

symbols() { # a debugger reads the symbols of a program of 5 MB: a large heap of many small objects
    ln -s "$root/target" target
    record gdb gdb -batch -nx -ex 'info functions ^malloc$' target/release/hectare
}

large-blocks() { # large blocks: contexts and windows of megabytes, made and freed level by level
    head -c 2000000 "$hectare" >input
    record zstd zstd -b1 -e9 -i0 ./input
}

all=(python-ast compiler key-value database linker python-http javascript symbols large-blocks)
[ $# -gt 0 ] || set -- "${all[@]}"
for name in "$@"; do
    [[ " ${all[*]} " == *" $name "* ]] || { echo "there is no $name; there are: ${all[*]}" >&2; exit 2; }
done
for name in "$@"; do "$name"; done
ls -l "$traces"/*.hxt
[ "$failed" -eq 0 ]
