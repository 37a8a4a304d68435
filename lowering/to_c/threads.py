# SPDX-License-Identifier: Apache-2.0
"""
The threads of a program in C: a pool in the context, whose threads run the iterations of parallel loops.

Iterations are divided into as many shares as there are threads, as evenly as may be, of adjacent iterations, always in
the same way. The caller is the first thread. Each thread runs its own share; one that the system has not woken yet when
the caller is done with its own is run by the caller. A thread that waits for the next loop spins for some microseconds,
and then sleeps.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.lowering.codegen.views import Captured
from penstock.lowering.to_c.text import CWriter, wrapped

DECLARATIONS = """\
struct {name}_ctx;
struct {name}_own;
/* Runs the iterations of a loop from `first` to before `last`. */
typedef void {name}_part(struct {name}_ctx *ctx, struct {name}_own *own, const void *given, int64_t first,
                         int64_t last);

/* What a share of the iterations has to itself. */
typedef struct {name}_own {{
  _Alignas(64) {name}_counters counters;
  int32_t fault;
  int number;
  atomic_uint taken; /* the number of the loop of which it was taken last */
  struct {name}_ctx *ctx;
{members}}} {name}_own;

/* The threads of a context, and the loop that they run. */
typedef struct {name}_pool {{
  int threads; /* the caller's included */
  int spins;   /* how often a thread looks before it sleeps */
  int is_started;
  pid_t process;
  {name}_part *part;
  const void *given;
  int64_t iterations;
  _Alignas(64) atomic_uint loops; /* so many have begun */
  atomic_int stops;
  atomic_int running;             /* shares of this loop that are not done */
  atomic_int asleep;              /* threads that wait to be woken */
  atomic_int waits;               /* whether the caller does */
  pthread_mutex_t lock;
  pthread_cond_t begins, ends;
  pthread_t workers[{others}];
}} {name}_pool;

"""
"""For the header; `others` is the number of threads without the caller's."""

ENTRIES = """\
/* The most threads that a context uses. */
int {name}_threads(void);

/* Start the threads of a context, before its first run: 0, or an error number. The outputs do not depend on how many
   there are, from 1 to {name}_threads(); which of several faults is returned may. A process that forks may go on to run
   the context in the child, with one. */
int {name}_start({name}_ctx *ctx, int threads);
/* End the threads of a context, after its last run. */
void {name}_stop({name}_ctx *ctx);

"""
"""For the header, after the context."""

INCLUDES = "#include <pthread.h>\n#include <stdatomic.h>\n#include <sys/types.h>\n"
"""Of the header."""

PROTOTYPE = (
    "PENSTOCK_KERNEL void {name}_parallel({name}_ctx *ctx, {name}_part *part, const void *given, int64_t iterations)"
)
"""Of the function that runs a parallel loop."""

POOL = """\
/* Threads: each runs its share of the iterations of a loop, and waits for the next loop. */
#include <errno.h>
#include <unistd.h>

enum {{ PEN_SPINS = 2000 }};

static inline void pen_pause(void) {{
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) && defined(__GNUC__)
  __asm__ __volatile__("yield");
#endif
}}

/* Run a share of the iterations. */
static void pen_run({name}_ctx *ctx, {name}_own *own, int number, int threads) {{
  const {name}_pool *const pool = &ctx->pool;
  memset(&own->counters, 0, sizeof own->counters);
  own->fault = 0;
  const int64_t first = pool->iterations * number / threads, last = pool->iterations * (number + 1) / threads;
  if (first < last) pool->part(ctx, own, pool->given, first, last);
}}

/* Run a share of the loop of this number, unless it is taken. */
static void pen_take({name}_own *own, unsigned loop) {{
  {name}_pool *const pool = &own->ctx->pool;
  unsigned before = loop - 1;
  if (!atomic_compare_exchange_strong(&own->taken, &before, loop)) return;
  pen_run(own->ctx, own, own->number, pool->threads);
  if (atomic_fetch_sub(&pool->running, 1) == 1 && atomic_load(&pool->waits)) {{
    pthread_mutex_lock(&pool->lock);
    pthread_cond_signal(&pool->ends);
    pthread_mutex_unlock(&pool->lock);
  }}
}}

static void *pen_work(void *given) {{
  {name}_own *const own = given;
  {name}_pool *const pool = &own->ctx->pool;
  for (unsigned seen = 0;;) {{
    for (int spins = 0; spins < pool->spins && atomic_load(&pool->loops) == seen; ++spins) pen_pause();
    if (atomic_load(&pool->loops) == seen) {{
      pthread_mutex_lock(&pool->lock);
      atomic_fetch_add(&pool->asleep, 1);
      while (atomic_load(&pool->loops) == seen) pthread_cond_wait(&pool->begins, &pool->lock);
      atomic_fetch_sub(&pool->asleep, 1);
      pthread_mutex_unlock(&pool->lock);
    }}
    seen = atomic_load(&pool->loops);
    if (atomic_load(&pool->stops)) return NULL;
    pen_take(own, seen);
  }}
}}

static void pen_begin({name}_pool *pool) {{
  atomic_fetch_add(&pool->loops, 1);
  if (atomic_load(&pool->asleep) > 0) {{
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->begins);
    pthread_mutex_unlock(&pool->lock);
  }}
}}

PENSTOCK_KERNEL void {name}_parallel({name}_ctx *ctx, {name}_part *part, const void *given, int64_t iterations) {{
  {name}_pool *const pool = &ctx->pool;
  /* A child of fork has no threads but its own. */
  const int threads = pool->threads > 1 && pool->process == getpid() ? pool->threads : 1;
  pool->part = part;
  pool->given = given;
  pool->iterations = iterations;
  if (threads > 1) {{
    atomic_store(&pool->running, threads - 1);
    pen_begin(pool);
  }}
  pen_run(ctx, &ctx->own[0], 0, threads);
  if (threads > 1) {{
    const unsigned loop = atomic_load(&pool->loops);
    for (int number = 1; number < threads; ++number) pen_take(&ctx->own[number], loop);
    for (int spins = 0; spins < pool->spins && atomic_load(&pool->running) > 0; ++spins) pen_pause();
    if (atomic_load(&pool->running) > 0) {{
      pthread_mutex_lock(&pool->lock);
      atomic_store(&pool->waits, 1);
      while (atomic_load(&pool->running) > 0) pthread_cond_wait(&pool->ends, &pool->lock);
      atomic_store(&pool->waits, 0);
      pthread_mutex_unlock(&pool->lock);
    }}
  }}
  for (int number = 0; number < threads; ++number) {{
    const {name}_own *const own = &ctx->own[number];
    if (ctx->fault == 0) ctx->fault = own->fault;
{sums}  }}
}}

int {name}_threads(void) {{ return {threads}; }}

int {name}_start({name}_ctx *ctx, int threads) {{
  {name}_pool *const pool = &ctx->pool;
  memset(pool, 0, sizeof *pool);
  pool->threads = 1;
  pool->process = getpid();
  pool->spins = threads <= sysconf(_SC_NPROCESSORS_ONLN) ? PEN_SPINS : 0;
  if (threads < 1 || threads > {threads}) return EINVAL;
  if (threads == 1) return 0;
  int fault = pthread_mutex_init(&pool->lock, NULL);
  if (fault != 0) return fault;
  fault = pthread_cond_init(&pool->begins, NULL);
  if (fault == 0 && (fault = pthread_cond_init(&pool->ends, NULL)) != 0) pthread_cond_destroy(&pool->begins);
  if (fault != 0) {{
    pthread_mutex_destroy(&pool->lock);
    return fault;
  }}
  pool->is_started = 1;
  int started = 1;
  while (fault == 0 && started < threads) {{
    atomic_init(&ctx->own[started].taken, 0);
    ctx->own[started].ctx = ctx;
    ctx->own[started].number = started;
    fault = pthread_create(&pool->workers[started - 1], NULL, pen_work, &ctx->own[started]);
    started += fault == 0;
  }}
  pool->threads = started;
  if (fault != 0) {name}_stop(ctx);
  return fault;
}}

void {name}_stop({name}_ctx *ctx) {{
  {name}_pool *const pool = &ctx->pool;
  const int threads = pool->threads;
  pool->threads = 1;
  if (!pool->is_started || pool->process != getpid()) return;
  pool->is_started = 0;
  atomic_store(&pool->stops, 1);
  pen_begin(pool);
  for (int number = 1; number < threads; ++number) pthread_join(pool->workers[number - 1], NULL);
  pthread_cond_destroy(&pool->begins);
  pthread_cond_destroy(&pool->ends);
  pthread_mutex_destroy(&pool->lock);
}}
"""
"""The definitions."""


def part_text(prefix: str, name: str, given: Sequence[tuple[str, Captured]], body: str) -> str:
    """The function that runs some iterations, and the one that the threads call, which unpacks what it is given."""
    common, limits = [f"{prefix}_ctx *ctx", f"{prefix}_own *own"], ["int64_t first", "int64_t last"]
    writer = CWriter()
    if given:
        writer.line(f"struct {name}_given {{")
        writer.lines += [f"  {type}{each.name};" for type, each in given]
        writer.line("};")
    parameters = [f"{type}{'restrict ' if each.is_restricted else ''}{each.name}" for type, each in given]
    writer.line(f"static PENSTOCK_APART void {name}({wrapped([*common, *parameters, *limits])}) {{")
    writer.line("  (void)ctx, (void)own;")
    writer.lines += [*body.splitlines(), "}", ""]
    with writer.block(f"static void {name}_part({wrapped([*common, 'const void *given', *limits])})"):
        writer.line(f"const struct {name}_given *const all = given;" if given else "(void)given;")
        passed = ["ctx", "own", *(f"all->{each.name}" for _, each in given), "first", "last"]
        writer.line(f"{name}({', '.join(passed)});")
    return writer.text() + "\n"
