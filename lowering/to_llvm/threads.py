# SPDX-License-Identifier: Apache-2.0
"""
The threads of a program in LLVM IR: the pool of generated C (`to_c.threads`), instruction by instruction.

A pool, and what a thread has to itself, have fixed places in a context. POSIX threads are called by their names; their
types have room for those of all systems.
"""

from __future__ import annotations

from penstock.lowering.codegen.program import COUNTERS

OWN_BYTES = 128
"""Of what a thread has to itself: counters and fault as a context has them, its number, the loop of which its share was
taken last, the context; scratch memory follows."""
POOL_BYTES = 320
"""Of a pool, without the handles of its threads, 8 bytes each."""

_FIELDS = {
    "threads": 0, "spins": 4, "process": 8, "started": 12, "part": 16, "given": 24, "iterations": 32,
    "loops": 64, "stops": 68, "running": 72, "asleep": 76, "waits": 80, "lock": 128, "begins": 192, "ends": 256,
    "workers": 320,
}  # fmt: skip
"""Where they are in a pool."""

_DECLARATIONS = """\
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_mutex_destroy(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_cond_destroy(ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(ptr, ptr)
declare i32 @getpid()
declare i64 @sysconf(i32)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"""

_POOL = """\
; Threads: each runs its share of the iterations of a loop, and waits for the next loop.

; Where a thread has what is its own.
define internal ptr @pen_own(ptr %ctx, i32 %number) #0 {
entry:
  %place = sext i32 %number to i64
  %offset = mul i64 %place, {own_size}
  %first = getelementptr i8, ptr %ctx, i64 {own}
  %own = getelementptr i8, ptr %first, i64 %offset
  ret ptr %own
}

; Run a share of the iterations.
define internal void @pen_run(ptr %ctx, ptr %own, i32 %number, i32 %threads) #1 {
entry:
  call void @llvm.memset.p0.i64(ptr %own, i8 0, i64 {fault_end}, i1 false)
  %iterations.at = getelementptr i8, ptr %ctx, i64 {iterations}
  %iterations = load i64, ptr %iterations.at
  %share = sext i32 %number to i64
  %shares = sext i32 %threads to i64
  %scaled = mul i64 %iterations, %share
  %first = sdiv i64 %scaled, %shares
  %next = add i64 %share, 1
  %scaled.next = mul i64 %iterations, %next
  %last = sdiv i64 %scaled.next, %shares
  %has.some = icmp slt i64 %first, %last
  br i1 %has.some, label %some, label %done
some:
  %part.at = getelementptr i8, ptr %ctx, i64 {part}
  %part = load ptr, ptr %part.at
  %given.at = getelementptr i8, ptr %ctx, i64 {given}
  %given = load ptr, ptr %given.at
  call void %part(ptr %ctx, ptr %own, ptr %given, i64 %first, i64 %last)
  br label %done
done:
  ret void
}

; Run a share of the loop of this number, unless it is taken.
define internal void @pen_take(ptr %own, i32 %loop) #1 {
entry:
  %taken.at = getelementptr i8, ptr %own, i64 64
  %before = sub i32 %loop, 1
  %exchange = cmpxchg ptr %taken.at, i32 %before, i32 %loop seq_cst seq_cst
  %is.mine = extractvalue { i32, i1 } %exchange, 1
  br i1 %is.mine, label %run, label %done
run:
  %ctx.at = getelementptr i8, ptr %own, i64 72
  %ctx = load ptr, ptr %ctx.at
  %number.at = getelementptr i8, ptr %own, i64 60
  %number = load i32, ptr %number.at
  %threads.at = getelementptr i8, ptr %ctx, i64 {threads}
  %threads = load i32, ptr %threads.at
  call void @pen_run(ptr %ctx, ptr %own, i32 %number, i32 %threads)
  %running = getelementptr i8, ptr %ctx, i64 {running}
  %left = atomicrmw sub ptr %running, i32 1 seq_cst
  %is.last = icmp eq i32 %left, 1
  br i1 %is.last, label %last, label %done
last:
  %waits.at = getelementptr i8, ptr %ctx, i64 {waits}
  %waits = load atomic i32, ptr %waits.at seq_cst, align 4
  %is.awaited = icmp ne i32 %waits, 0
  br i1 %is.awaited, label %signal, label %done
signal:
  %lock = getelementptr i8, ptr %ctx, i64 {lock}
  %ends = getelementptr i8, ptr %ctx, i64 {ends}
  %locked = call i32 @pthread_mutex_lock(ptr %lock)
  %signalled = call i32 @pthread_cond_signal(ptr %ends)
  %unlocked = call i32 @pthread_mutex_unlock(ptr %lock)
  br label %done
done:
  ret void
}

define internal ptr @pen_work(ptr %own) #1 {
entry:
  %ctx.at = getelementptr i8, ptr %own, i64 72
  %ctx = load ptr, ptr %ctx.at
  %loops = getelementptr i8, ptr %ctx, i64 {loops}
  %stops.at = getelementptr i8, ptr %ctx, i64 {stops}
  %asleep = getelementptr i8, ptr %ctx, i64 {asleep}
  %lock = getelementptr i8, ptr %ctx, i64 {lock}
  %begins = getelementptr i8, ptr %ctx, i64 {begins}
  %spins.at = getelementptr i8, ptr %ctx, i64 {spins}
  %spins = load i32, ptr %spins.at
  br label %wait
wait:
  %seen = phi i32 [ 0, %entry ], [ %now, %take ]
  br label %spin
spin:
  %count = phi i32 [ 0, %wait ], [ %count.next, %spin.on ]
  %spun = load atomic i32, ptr %loops seq_cst, align 4
  %has.begun = icmp ne i32 %spun, %seen
  br i1 %has.begun, label %wake, label %spin.on
spin.on:
  %count.next = add i32 %count, 1
  %may.spin = icmp slt i32 %count.next, %spins
  br i1 %may.spin, label %spin, label %sleep
sleep:
  %locked = call i32 @pthread_mutex_lock(ptr %lock)
  %more = atomicrmw add ptr %asleep, i32 1 seq_cst
  br label %sleeping
sleeping:
  %slept = load atomic i32, ptr %loops seq_cst, align 4
  %is.same = icmp eq i32 %slept, %seen
  br i1 %is.same, label %sleep.on, label %awake
sleep.on:
  %waited = call i32 @pthread_cond_wait(ptr %begins, ptr %lock)
  br label %sleeping
awake:
  %fewer = atomicrmw sub ptr %asleep, i32 1 seq_cst
  %unlocked = call i32 @pthread_mutex_unlock(ptr %lock)
  br label %wake
wake:
  %now = load atomic i32, ptr %loops seq_cst, align 4
  %stops = load atomic i32, ptr %stops.at seq_cst, align 4
  %must.stop = icmp ne i32 %stops, 0
  br i1 %must.stop, label %done, label %take
take:
  call void @pen_take(ptr %own, i32 %now)
  br label %wait
done:
  ret ptr null
}

define internal void @pen_begin(ptr %ctx) #1 {
entry:
  %loops = getelementptr i8, ptr %ctx, i64 {loops}
  %before = atomicrmw add ptr %loops, i32 1 seq_cst
  %asleep.at = getelementptr i8, ptr %ctx, i64 {asleep}
  %asleep = load atomic i32, ptr %asleep.at seq_cst, align 4
  %any.sleeps = icmp sgt i32 %asleep, 0
  br i1 %any.sleeps, label %wake, label %done
wake:
  %lock = getelementptr i8, ptr %ctx, i64 {lock}
  %begins = getelementptr i8, ptr %ctx, i64 {begins}
  %locked = call i32 @pthread_mutex_lock(ptr %lock)
  %woken = call i32 @pthread_cond_broadcast(ptr %begins)
  %unlocked = call i32 @pthread_mutex_unlock(ptr %lock)
  br label %done
done:
  ret void
}

define internal void @{name}_parallel(ptr %ctx, ptr %part, ptr %given, i64 %iterations) #1 {
entry:
  %threads.at = getelementptr i8, ptr %ctx, i64 {threads}
  %most = load i32, ptr %threads.at
  %process.at = getelementptr i8, ptr %ctx, i64 {process}
  %process = load i32, ptr %process.at
  %here = call i32 @getpid()
  ; A child of fork has no threads but its own.
  %is.here = icmp eq i32 %process, %here
  %threads = select i1 %is.here, i32 %most, i32 1
  %part.at = getelementptr i8, ptr %ctx, i64 {part}
  store ptr %part, ptr %part.at
  %given.at = getelementptr i8, ptr %ctx, i64 {given}
  store ptr %given, ptr %given.at
  %iterations.at = getelementptr i8, ptr %ctx, i64 {iterations}
  store i64 %iterations, ptr %iterations.at
  %own.0 = call ptr @pen_own(ptr %ctx, i32 0)
  %is.parallel = icmp sgt i32 %threads, 1
  br i1 %is.parallel, label %begin, label %alone
alone:
  call void @pen_run(ptr %ctx, ptr %own.0, i32 0, i32 1)
  br label %sum
begin:
  %running.at = getelementptr i8, ptr %ctx, i64 {running}
  %others = sub i32 %threads, 1
  store atomic i32 %others, ptr %running.at seq_cst, align 4
  call void @pen_begin(ptr %ctx)
  call void @pen_run(ptr %ctx, ptr %own.0, i32 0, i32 %threads)
  %loops = getelementptr i8, ptr %ctx, i64 {loops}
  %loop = load atomic i32, ptr %loops seq_cst, align 4
  br label %taking
taking:
  %other = phi i32 [ 1, %begin ], [ %other.next, %taking ]
  %own.other = call ptr @pen_own(ptr %ctx, i32 %other)
  call void @pen_take(ptr %own.other, i32 %loop)
  %other.next = add i32 %other, 1
  %has.others = icmp slt i32 %other.next, %threads
  br i1 %has.others, label %taking, label %taken
taken:
  %spins.at = getelementptr i8, ptr %ctx, i64 {spins}
  %spins = load i32, ptr %spins.at
  br label %spin
spin:
  %count = phi i32 [ 0, %taken ], [ %count.next, %spin.on ]
  %spun = load atomic i32, ptr %running.at seq_cst, align 4
  %is.done = icmp sle i32 %spun, 0
  br i1 %is.done, label %sum, label %spin.on
spin.on:
  %count.next = add i32 %count, 1
  %may.spin = icmp slt i32 %count.next, %spins
  br i1 %may.spin, label %spin, label %sleep
sleep:
  %lock = getelementptr i8, ptr %ctx, i64 {lock}
  %ends = getelementptr i8, ptr %ctx, i64 {ends}
  %waits = getelementptr i8, ptr %ctx, i64 {waits}
  %locked = call i32 @pthread_mutex_lock(ptr %lock)
  store atomic i32 1, ptr %waits seq_cst, align 4
  br label %sleeping
sleeping:
  %left = load atomic i32, ptr %running.at seq_cst, align 4
  %still.runs = icmp sgt i32 %left, 0
  br i1 %still.runs, label %sleep.on, label %awake
sleep.on:
  %waited = call i32 @pthread_cond_wait(ptr %ends, ptr %lock)
  br label %sleeping
awake:
  store atomic i32 0, ptr %waits seq_cst, align 4
  %unlocked = call i32 @pthread_mutex_unlock(ptr %lock)
  br label %sum
sum:
  %number = phi i32 [ 0, %alone ], [ 0, %spin ], [ 0, %awake ], [ %number.next, %sum ]
  %own = call ptr @pen_own(ptr %ctx, i32 %number)
  %fault.at = getelementptr i8, ptr %ctx, i64 {fault}
  %own.fault.at = getelementptr i8, ptr %own, i64 {fault}
  %fault = load i32, ptr %fault.at
  %own.fault = load i32, ptr %own.fault.at
  %is.first = icmp eq i32 %fault, 0
  %kept = select i1 %is.first, i32 %own.fault, i32 %fault
  store i32 %kept, ptr %fault.at
{sums}
  %number.next = add i32 %number, 1
  %has.more = icmp slt i32 %number.next, %threads
  br i1 %has.more, label %sum, label %end
end:
  ret void
}

define i32 @{name}_threads() #0 {
entry:
  ret i32 {most}
}

define i32 @{name}_start(ptr %ctx, i32 %threads) #1 {
entry:
  %pool = getelementptr i8, ptr %ctx, i64 {threads}
  call void @llvm.memset.p0.i64(ptr %pool, i8 0, i64 {pool_size}, i1 false)
  store i32 1, ptr %pool
  %process.at = getelementptr i8, ptr %ctx, i64 {process}
  %here = call i32 @getpid()
  store i32 %here, ptr %process.at
  ; The processors that are there, by the number that Linux has for them; where it is another's, threads do not spin.
  %processors = call i64 @sysconf(i32 84)
  %wished = sext i32 %threads to i64
  %are.enough = icmp sle i64 %wished, %processors
  %spins = select i1 %are.enough, i32 {most_spins}, i32 0
  %spins.at = getelementptr i8, ptr %ctx, i64 {spins}
  store i32 %spins, ptr %spins.at
  %is.too.few = icmp slt i32 %threads, 1
  %is.too.many = icmp sgt i32 %threads, {most}
  %is.wrong = or i1 %is.too.few, %is.too.many
  br i1 %is.wrong, label %invalid, label %valid
invalid:
  ret i32 22
valid:
  %is.one = icmp eq i32 %threads, 1
  br i1 %is.one, label %one, label %lock.init
one:
  ret i32 0
lock.init:
  %lock = getelementptr i8, ptr %ctx, i64 {lock}
  %begins = getelementptr i8, ptr %ctx, i64 {begins}
  %ends = getelementptr i8, ptr %ctx, i64 {ends}
  %lock.fault = call i32 @pthread_mutex_init(ptr %lock, ptr null)
  %lock.fails = icmp ne i32 %lock.fault, 0
  br i1 %lock.fails, label %without.lock, label %begins.init
without.lock:
  ret i32 %lock.fault
begins.init:
  %begins.fault = call i32 @pthread_cond_init(ptr %begins, ptr null)
  %begins.fails = icmp ne i32 %begins.fault, 0
  br i1 %begins.fails, label %without.begins, label %ends.init
without.begins:
  %undone.1 = call i32 @pthread_mutex_destroy(ptr %lock)
  ret i32 %begins.fault
ends.init:
  %ends.fault = call i32 @pthread_cond_init(ptr %ends, ptr null)
  %ends.fails = icmp ne i32 %ends.fault, 0
  br i1 %ends.fails, label %without.ends, label %begin
without.ends:
  %undone.2 = call i32 @pthread_cond_destroy(ptr %begins)
  %undone.3 = call i32 @pthread_mutex_destroy(ptr %lock)
  ret i32 %ends.fault
begin:
  %started.at = getelementptr i8, ptr %ctx, i64 {started}
  store i32 1, ptr %started.at
  %workers = getelementptr i8, ptr %ctx, i64 {workers}
  br label %starting
starting:
  %number = phi i32 [ 1, %begin ], [ %number.next, %running ]
  %own = call ptr @pen_own(ptr %ctx, i32 %number)
  %number.at = getelementptr i8, ptr %own, i64 60
  store i32 %number, ptr %number.at
  %taken.at = getelementptr i8, ptr %own, i64 64
  store i32 0, ptr %taken.at
  %ctx.at = getelementptr i8, ptr %own, i64 72
  store ptr %ctx, ptr %ctx.at
  %place = sub i32 %number, 1
  %worker = getelementptr i64, ptr %workers, i32 %place
  %fault = call i32 @pthread_create(ptr %worker, ptr null, ptr @pen_work, ptr %own)
  %fails = icmp ne i32 %fault, 0
  br i1 %fails, label %failed, label %running
running:
  %number.next = add i32 %number, 1
  %has.more = icmp slt i32 %number.next, %threads
  br i1 %has.more, label %starting, label %done
failed:
  store i32 %number, ptr %pool
  call void @{name}_stop(ptr %ctx)
  ret i32 %fault
done:
  store i32 %threads, ptr %pool
  ret i32 0
}

define void @{name}_stop(ptr %ctx) #1 {
entry:
  %pool = getelementptr i8, ptr %ctx, i64 {threads}
  %threads = load i32, ptr %pool
  store i32 1, ptr %pool
  %started.at = getelementptr i8, ptr %ctx, i64 {started}
  %started = load i32, ptr %started.at
  %is.started = icmp ne i32 %started, 0
  %process.at = getelementptr i8, ptr %ctx, i64 {process}
  %process = load i32, ptr %process.at
  %here = call i32 @getpid()
  %is.here = icmp eq i32 %process, %here
  %has.threads = and i1 %is.started, %is.here
  br i1 %has.threads, label %stop, label %done
stop:
  store i32 0, ptr %started.at
  %stops.at = getelementptr i8, ptr %ctx, i64 {stops}
  store atomic i32 1, ptr %stops.at seq_cst, align 4
  call void @pen_begin(ptr %ctx)
  %workers = getelementptr i8, ptr %ctx, i64 {workers}
  br label %joining
joining:
  %number = phi i32 [ 1, %stop ], [ %number.next, %join ]
  %has.more = icmp slt i32 %number, %threads
  br i1 %has.more, label %join, label %joined
join:
  %place = sub i32 %number, 1
  %worker.at = getelementptr i64, ptr %workers, i32 %place
  %worker = load ptr, ptr %worker.at
  %ignored = call i32 @pthread_join(ptr %worker, ptr null)
  %number.next = add i32 %number, 1
  br label %joining
joined:
  %begins = getelementptr i8, ptr %ctx, i64 {begins}
  %ends = getelementptr i8, ptr %ctx, i64 {ends}
  %lock = getelementptr i8, ptr %ctx, i64 {lock}
  %gone.1 = call i32 @pthread_cond_destroy(ptr %begins)
  %gone.2 = call i32 @pthread_cond_destroy(ptr %ends)
  %gone.3 = call i32 @pthread_mutex_destroy(ptr %lock)
  br label %done
done:
  ret void
}"""

_SPINS = 50_000
"""How often a thread looks before it sleeps: for some ten microseconds, as in C, where it pauses each time."""


def pool_text(name: str, threads: int, pool: int, own: int, own_size: int, fault: int) -> str:
    """
    The functions of a program's threads: `<name>_parallel`, `<name>_threads`, `<name>_start` and `<name>_stop`.

    In a context the pool begins at byte `pool`, and what each thread has at `own`, `own_size` bytes each; the fault is
    at `fault` of both.
    """
    sums: list[str] = []
    for number in range(len(COUNTERS)):
        sums += [
            f"  %counter.{number}.at = getelementptr i64, ptr %ctx, i64 {number}",
            f"  %own.counter.{number}.at = getelementptr i64, ptr %own, i64 {number}",
            f"  %counter.{number} = load i64, ptr %counter.{number}.at",
            f"  %own.counter.{number} = load i64, ptr %own.counter.{number}.at",
            f"  %sum.{number} = add i64 %counter.{number}, %own.counter.{number}",
            f"  store i64 %sum.{number}, ptr %counter.{number}.at",
        ]
    known: dict[str, int | str] = {field: pool + offset for field, offset in _FIELDS.items()}
    known |= {
        "name": name, "most": threads, "own": own, "own_size": own_size, "fault": fault, "fault_end": fault + 4,
        "pool_size": POOL_BYTES + 8 * (threads - 1), "most_spins": _SPINS, "sums": "\n".join(sums),
    }  # fmt: skip
    text = _POOL
    for field, value in known.items():
        text = text.replace(f"{{{field}}}", str(value))
    return f"{text}\n\n{_DECLARATIONS}"
