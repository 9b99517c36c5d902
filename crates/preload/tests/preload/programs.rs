//! Real programs, unharmed: each runs with the library and without, and must print the same.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{
    Ended, Outcome, Suite, ensure, plain, preloaded, program, run, run_with_input, scratch,
};

pub(crate) fn add(suite: &mut Suite) {
    suite.test_with("programs::python3", &["python3"], || {
        same(&|command| run(command.args(["-c", PYTHON]).env("PYTHONMALLOC", "malloc")), "python3")
    });
    suite.test_with("programs::perl", &["perl"], || {
        same(&|command| run(command.args(["-e", PERL])), "perl")
    });
    suite.test_with("programs::sqlite3", &["sqlite3"], || {
        same(&|command| run_with_input(command.arg(":memory:"), SQL), "sqlite3")
    });
    suite.test_with("programs::awk", &["awk"], || {
        same(&|command| run_with_input(command.arg(AWK), &numbered_lines()), "awk")
    });
    suite.test_with("programs::sed", &["sed"], || {
        same(&|command| run_with_input(command.args(["-E", SED]), &numbered_lines()), "sed")
    });
    suite.test_with("programs::gcc", &["gcc"], compile_c);
    suite.test_with("programs::c++", &["c++"], compile_cxx);
    suite.test_with("programs::git", &["git"], git);
    suite.test_with("programs::node", &["node"], || {
        same(&|command| run(command.args(["-e", NODE])), "node")
    });
    suite.test_with("programs::sort_on_threads", &["sort"], || {
        let lines = numbered_lines();
        same(
            &|command| run_with_input(command.args(["--parallel=8", "-S1M", "-n"]), &lines),
            "sort",
        )
    });
    suite.test_with("programs::under_memcheck", &["cc", "valgrind"], under_memcheck);
    suite.test_with("programs::redis", &["redis-server", "redis-benchmark"], redis);
}

/// As crates/preload/README.md describes it.
fn under_memcheck() -> Outcome {
    let mut command = preloaded("valgrind");
    command.args(["--leak-check=full", "--soname-synonyms=somalloc=libhectare.so"]);
    let told =
        run(command.arg("--show-mismatched-frees=no").arg(program("memcheck.c")?))?.well()?;
    let seen = [
        "Invalid write of size 1",
        "after a block of size 30",
        "77 bytes in 1 blocks are definitely lost",
    ];
    ensure(seen.iter().all(|line| told.stderr.contains(line)), || told.describe("memcheck"))
}

const PYTHON: &str = "
import json, threading, collections, hashlib, re, zlib, subprocess
def work(n, out):
    data = [{'id': i, 'name': 'x' * (i % 97), 'kids': list(range(i % 13))} for i in range(n, n + 3000)]
    text = json.dumps(data)
    out[n] = hashlib.sha256(zlib.compress(text.encode())).hexdigest(), len(json.loads(text))
out = {}
threads = [threading.Thread(target=work, args=(n, out)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(sorted(out.items()))
words = collections.Counter(re.findall('[a-f]+', ' '.join(v[0] for v in out.values())))
print(sorted(words.items()))
big = bytearray()
for i in range(200): big += bytes([i % 256]) * 100000
print(len(big), hashlib.md5(big).hexdigest())
print(subprocess.run(['echo', 'child'], capture_output=True).stdout)
";

const PERL: &str = r#"
my %h; for my $i (1..60000) { $h{"key$i"} = "v" x ($i % 61); push @{$h{list}}, $i if $i % 7 == 0 }
my $sum = 0; for (sort keys %h) { $sum = ($sum * 31 + length $h{$_}) % 1000003 unless $_ eq 'list' }
my $text = join ",", map { sprintf "%05d", $_ } reverse @{$h{list}}; $text =~ s/(\d)0/$1-/g;
print "$sum ", length $text, " ", substr($text, 0, 200), "\n"; print `echo from a child`;
"#;

const SQL: &str = "
create table t(id integer primary key, name text, size real);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 40000)
  insert into t select i, printf('name-%d-%s', i * 7919 % 10007, hex(i)), i * 1.5 from n;
create index by_name on t(name);
select count(*), sum(size), min(name), max(name) from t;
delete from t where id % 3 = 0;
update t set name = name || '-' || id where id % 5 = 0;
vacuum;
select name, size from t where name like 'name-12%' order by name limit 20;
select length(group_concat(name, ';')) from (select name from t order by name);
pragma integrity_check;
";

const NODE: &str = "
const m = new Map(); for (let i = 0; i < 100000; i++) m.set('k' + (i * 7919 % 10007), Buffer.alloc(i % 300, i));
let s = 0; for (const [k, v] of [...m].sort()) s = (s * 31 + v.length + k.length) % 1000003;
console.log(m.size, s, require('zlib').gzipSync(Buffer.alloc(3e6, 'abc')).length > 0);
";

/// Counts, strings that grow, a table with as many keys as there are lines.
const AWK: &str = r#"
{ n[$1 % 5003] = n[$1 % 5003] "," $1; seen[$1]++; sum += length(n[$1 % 5003]) }
END { for (k in seen) distinct++; print distinct, sum, length(n[7]), substr(n[42], 1, 60) }
"#;

/// Gathers all lines in the hold space, ten thousand at a time.
const SED: &str = r"s/([0-9])([0-9]*)/\2-\1/; H; 0~10000!d; x; s/\n/;/g; s/-//g";

fn numbered_lines() -> String {
    (0..200_000u64).map(|i| format!("{}\n", i * 7919 % 200_003)).collect()
}

/// Runs a command with the library and without it. Its output must be the same.
fn same(act: &dyn Fn(&mut Command) -> Result<Ended, String>, tool: &str) -> Outcome {
    let without = act(&mut plain(tool))?.well()?;
    let with = act(&mut preloaded(tool))?.well()?;
    ensure(without.stdout == with.stdout && without.stderr == with.stderr, || {
        format!("{}\n{}", without.describe("without the library"), with.describe("with it"))
    })
}

/// Compiles twice; the objects must be the same bytes. The real source file is one of this test's
/// own.
fn compile_twice(compiler: &str, source: &str) -> Outcome {
    let directory = scratch(&format!("programs-{compiler}"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
    let (without, with) = (directory.join("without.s"), directory.join("with.s"));
    for (mut command, out) in [(plain(compiler), &without), (preloaded(compiler), &with)] {
        run(command.args(["-O2", "-S", "-o"]).arg(out).arg(&source))?.well()?;
    }
    let read = |path: &Path| fs::read(path).map_err(|error| error.to_string());
    ensure(read(&without)? == read(&with)?, || format!("{compiler} made something else"))?;
    fs::remove_dir_all(directory).map_err(|error| error.to_string())
}

fn compile_c() -> Outcome {
    compile_twice("gcc", "contract.c")
}

fn compile_cxx() -> Outcome {
    compile_twice("c++", "operators.cpp")
}

/// A history is made, packed and read with the library, then read without it.
fn git() -> Outcome {
    let directory = scratch("programs-git");
    let git = |mut command: Command, arguments: &[&str]| {
        command.current_dir(&directory).args(["-c", "user.name=A", "-c", "user.email=a@b"]);
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        command.env("GIT_AUTHOR_DATE", "1700000000 +0000");
        command.env("GIT_COMMITTER_DATE", "1700000000 +0000");
        run(command.args(arguments))?.well().map(|ended| ended.stdout)
    };
    git(preloaded("git"), &["init", "-q", "-b", "main"])?;
    for round in 0..5 {
        for file in 0..40 {
            let text: String = (0..200).map(|i| format!("{}\n", i * file + round)).collect();
            fs::write(directory.join(format!("file{file}")), text).map_err(|e| e.to_string())?;
        }
        git(preloaded("git"), &["add", "."])?;
        git(preloaded("git"), &["commit", "-q", "-m", &format!("round {round}")])?;
    }
    git(preloaded("git"), &["gc", "-q", "--aggressive"])?;
    for arguments in [&["fsck", "--full"][..], &["log", "-p", "--stat"], &["blame", "file7"]] {
        let (with, without) = (git(preloaded("git"), arguments)?, git(plain("git"), arguments)?);
        ensure(with == without, || format!("git {arguments:?} says something else"))?;
    }
    fs::remove_dir_all(directory).map_err(|error| error.to_string())
}

/// A server that is ended when the test is over, however that ends.
struct Server(std::process::Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Either call fails only if the server has ended already, which the test has seen.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server with the library under the benchmark's load, checked by its own answers.
fn redis() -> Outcome {
    let directory = scratch("programs-redis");
    // A port that was free a moment ago.
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let port = listener.local_addr().map_err(|error| error.to_string())?.port();
    drop(listener);
    let mut command = preloaded("redis-server");
    command.args(["--port", &port.to_string(), "--save", "", "--appendonly", "no"]);
    command.args(["--bind", "127.0.0.1"]).current_dir(&directory);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut server = Server(child.map_err(|error| error.to_string())?);
    let started = Instant::now();
    while ask(port, "PING").as_deref() != Ok("+PONG") {
        ensure(started.elapsed() < Duration::from_secs(20), || "redis does not answer".into())?;
        std::thread::sleep(Duration::from_millis(20));
    }
    let port_text = port.to_string();
    let mut benchmark = preloaded("redis-benchmark");
    benchmark.args(["-p", &port_text, "-q", "-n", "20000", "-r", "5000", "-d", "300", "-P", "16"]);
    run(benchmark.args(["-t", "set,get,lpush,hset,sadd,mset"]))?.well()?;
    // The server's fork saves while the server goes on. Then all is as it was.
    let before = ask(port, "DBSIZE")?;
    ensure(before.starts_with(':') && before != ":0", || format!("DBSIZE says {before}"))?;
    ensure(ask(port, "BGSAVE")?.starts_with('+'), || "BGSAVE is refused".into())?;
    let saved = directory.join("dump.rdb");
    let started = Instant::now();
    while !saved.is_file() {
        ensure(started.elapsed() < Duration::from_secs(20), || "the fork saves nothing".into())?;
        std::thread::sleep(Duration::from_millis(20));
    }
    ensure(ask(port, "DEBUG RELOAD NOSAVE").is_ok(), || "no answer".into())?;
    ensure(ask(port, "FLUSHALL")? == "+OK", || "FLUSHALL fails".into())?;
    ensure(ask(port, "DBSIZE")? == ":0", || "something is left".into())?;
    let ended = server.0.try_wait().map_err(|error| error.to_string())?;
    ensure(ended.is_none(), || format!("redis has ended: {ended:?}"))?;
    fs::remove_dir_all(directory).map_err(|error| error.to_string())
}

/// The first line that redis answers to a command.
fn ask(port: u16, command: &str) -> Result<String, String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
    let limit = Some(Duration::from_secs(20));
    stream.set_read_timeout(limit).map_err(|error| error.to_string())?;
    stream.write_all(format!("{command}\r\n").as_bytes()).map_err(|error| error.to_string())?;
    let mut answer = [0; 512];
    let bytes = stream.read(&mut answer).map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&answer[..bytes]).lines().next().unwrap_or_default().to_owned())
}
