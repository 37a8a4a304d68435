/*
 * A functional model of Gemmini in C11, written from its instruction set (see gemmini.h for the documents).
 *
 * One file of a program that is compiled with PENSTOCK_MODEL includes this one. It is strict where hardware is not:
 * reading what nothing has written or configured, an address outside of the regions that the program has named, and a
 * byte off chip that is read back without a fence are faults: a message with the number of the instruction, and exit
 * status 1. Output stationary products, transposition, pooling and the loop instructions are refused.
 *
 * Arithmetic: sums of int8_t are int32_t that wrap; a scale multiplies in float32, rounds to the nearest even integer
 * and clips. Floats are multiplied and added in float32, each operation rounded (compile with -ffp-contract=off): the
 * mesh sums a block from 0 on, in the order of k, and the result is then added to the accumulator.
 *
 * The environment says, on a host with files:
 *   GEMMINI_LAZY=1      instructions are executed at the fence, as late as hardware may: a host that does not wait for
 *                       its results, or overwrites its operands too early, computes something else
 *   GEMMINI_LOG=FILE    what goes in and out, for penstock.runtime.gemmini, which executes it again
 *
 * The log, in the byte order of the machine: 8 bytes "GEMMINI1", four words of 32 bits (GEMMINI_DIM, GEMMINI_FLOAT,
 * GEMMINI_SPAD_ROWS, GEMMINI_ACC_ROWS), then records of three words of 64 bits:
 *   'R' | writable << 8, address, bytes     a region; its contents are zeros until said otherwise
 *   'H', address, bytes                     the host has written since the last fence; the bytes follow
 *   'I' | funct << 8, rs1, rs2              an instruction
 *   'D', address, bytes                     instructions have written; the bytes follow
 *   'F', 0, 0                               a fence
 */
#ifndef PENSTOCK_GEMMINI_MODEL_H
#define PENSTOCK_GEMMINI_MODEL_H

#ifndef PENSTOCK_MODEL
#error "model.h is for programs that are compiled with PENSTOCK_MODEL"
#endif

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "gemmini.h"

#ifdef __riscv
#define GEMMINI_FILES 0 /* bare metal: neither files nor an environment */
#else
#define GEMMINI_FILES 1
#endif

struct gemmini_block {
  uint32_t row;
  unsigned columns, rows;
  int accumulator, accumulate, full, none;
};

struct gemmini_channel {
  int configured, narrow;
  uint64_t stride, block_stride;
  float scale;
};

struct gemmini_instruction {
  uint64_t rs1, rs2;
  unsigned funct;
};

struct gemmini_region_state {
  const char *name;
  uint64_t base, bytes;
  int writable;
  uint8_t *stored;              /* what mvout has written since the last fence */
  uint64_t stored_low, stored_high;
  uint8_t *known;               /* what the log says of the contents */
};

static struct {
  gemmini_element spad[GEMMINI_SPAD_ROWS][GEMMINI_DIM];
  gemmini_sum acc[GEMMINI_ACC_ROWS][GEMMINI_DIM];
  uint8_t spad_written[GEMMINI_SPAD_ROWS][GEMMINI_DIM], acc_written[GEMMINI_ACC_ROWS][GEMMINI_DIM];

  struct gemmini_channel load[3];
  struct {
    int configured;
    enum gemmini_activation activation;
    uint64_t a_stride, c_stride;
  } execute;
  struct {
    int configured;
    enum gemmini_activation activation;
    uint64_t stride;
    float scale;
  } store;

  int preloaded, has_weights;   /* a preload waits for its compute; the mesh holds weights */
  struct gemmini_block b, c;
  gemmini_sum weights[GEMMINI_DIM][GEMMINI_DIM];

  struct gemmini_region_state *regions;
  size_t region_count;

  struct gemmini_instruction *waiting, current;
  size_t waiting_count, waiting_room;
  uint64_t executed, unfenced;
  int moving;                   /* there was a mvin or mvout since the last fence: the host waits */
  int started, lazy;
  FILE *log;
} gemmini;

static const char *gemmini_name(unsigned funct, uint64_t rs1) {
  static const char *const configs[] = {"config_ex", "config_ld", "config_st", "config"};
  switch (funct) {
    case GEMMINI_CONFIG: return configs[rs1 & 3];
    case GEMMINI_MVIN: return "mvin";
    case GEMMINI_MVIN2: return "mvin2";
    case GEMMINI_MVIN3: return "mvin3";
    case GEMMINI_MVOUT: return "mvout";
    case GEMMINI_COMPUTE_PRELOADED: return "compute_preloaded";
    case GEMMINI_COMPUTE_ACCUMULATED: return "compute_accumulated";
    case GEMMINI_PRELOAD: return "preload";
    case GEMMINI_FLUSH: return "flush";
    default: return "unknown";
  }
}

#ifdef __GNUC__
__attribute__((noreturn, format(printf, 1, 2)))
#endif
static void gemmini_fault(const char *format, ...) {
  va_list arguments;
  fprintf(stderr, "gemmini: instruction %llu (%s): ", (unsigned long long)gemmini.executed,
          gemmini_name(gemmini.current.funct, gemmini.current.rs1));
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fprintf(stderr, "\n");
  if (gemmini.log) fclose(gemmini.log);
  _Exit(1);
}

static void *gemmini_memory(void *old, size_t bytes) {
  void *memory = realloc(old, bytes ? bytes : 1);
  if (!memory) {
    fprintf(stderr, "gemmini: no memory for the model\n");
    _Exit(1);
  }
  return memory;
}

/* The log. */

static void gemmini_record(uint64_t kind, uint64_t first, uint64_t second) {
  uint64_t words[3] = {kind, first, second};
  if (gemmini.log) fwrite(words, sizeof words, 1, gemmini.log);
}

/* Record what differs from what the log has said, as pieces that are `apart` bytes from each other at least. */
static void gemmini_record_contents(uint64_t kind) {
  enum { apart = 64 };
  if (!gemmini.log) return;
  for (size_t i = 0; i < gemmini.region_count; i++) {
    struct gemmini_region_state *region = &gemmini.regions[i];
    const uint8_t *now = (const uint8_t *)(uintptr_t)region->base;
    uint64_t at = 0;
    while (at < region->bytes) {
      uint64_t step = region->bytes - at < 4096 ? region->bytes - at : 4096;
      if (!memcmp(now + at, region->known + at, step)) {
        at += step;
        continue;
      }
      while (now[at] == region->known[at]) at++;
      uint64_t begin = at, end = at + 1;
      for (at = end; at < region->bytes && at - end < apart; at++)
        if (now[at] != region->known[at]) end = at + 1;
      gemmini_record(kind, region->base + begin, end - begin);
      fwrite(now + begin, 1, end - begin, gemmini.log);
      memcpy(region->known + begin, now + begin, end - begin);
    }
  }
}

/* Memory off chip. */

static struct gemmini_region_state *gemmini_find(uint64_t address, uint64_t bytes) {
  for (size_t i = 0; i < gemmini.region_count; i++) {
    struct gemmini_region_state *region = &gemmini.regions[i];
    if (address >= region->base && address + bytes <= region->base + region->bytes) return region;
  }
  gemmini_fault("reaches %llu bytes at address %#llx, which are in no region", (unsigned long long)bytes,
                (unsigned long long)address);
}

static const void *gemmini_read(uint64_t address, uint64_t bytes) {
  struct gemmini_region_state *region = gemmini_find(address, bytes);
  uint64_t at = address - region->base;
  if (at < region->stored_high && at + bytes > region->stored_low)
    for (uint64_t i = at; i < at + bytes; i++)
      if (region->stored[i])
        gemmini_fault("reads byte %llu of %s, which mvout has written, without a fence between",
                      (unsigned long long)i, region->name);
  return (const void *)(uintptr_t)address;
}

static void *gemmini_write(uint64_t address, uint64_t bytes) {
  struct gemmini_region_state *region = gemmini_find(address, bytes);
  uint64_t at = address - region->base;
  if (!region->writable)
    gemmini_fault("writes byte %llu of %s, which is only read", (unsigned long long)at, region->name);
  if (region->stored_low == region->stored_high) region->stored_low = at;
  if (at < region->stored_low) region->stored_low = at;
  if (at + bytes > region->stored_high) region->stored_high = at + bytes;
  memset(region->stored + at, 1, bytes);
  return (void *)(uintptr_t)address;
}

/* Decoding. */

static uint64_t gemmini_bits(uint64_t word, unsigned low, unsigned width) {
  return word >> low & ((UINT64_C(1) << width) - 1);
}

static void gemmini_only(const char *name, uint64_t word, uint64_t known) {
  if (word & ~known)
    gemmini_fault("bits %#llx of %s are not modelled", (unsigned long long)(word & ~known), name);
}

static float gemmini_scale(uint64_t bits) {
  uint32_t narrow = (uint32_t)bits;
  float scale;
  memcpy(&scale, &narrow, sizeof scale);
  if (!(scale - scale == 0)) gemmini_fault("scales by what is no finite number");
  return scale;
}

static enum gemmini_activation gemmini_activation_of(uint64_t bits) {
  if (bits > GEMMINI_RELU) gemmini_fault("activation %llu is not modelled", (unsigned long long)bits);
  return (enum gemmini_activation)bits;
}

static struct gemmini_block gemmini_block_of(uint64_t word, const char *what, unsigned most_columns) {
  struct gemmini_block block = {0};
  block.row = (uint32_t)gemmini_bits(word, 0, 29);
  block.full = (int)gemmini_bits(word, 29, 1);
  block.accumulate = (int)gemmini_bits(word, 30, 1);
  block.accumulator = (int)gemmini_bits(word, 31, 1);
  block.none = (uint32_t)word == GEMMINI_NONE;
  block.columns = (unsigned)gemmini_bits(word, 32, 16);
  block.rows = (unsigned)gemmini_bits(word, 48, 16);
  if (block.none) return block;
  if (block.rows == 0 || block.rows > GEMMINI_DIM)
    gemmini_fault("%s has %u rows, from 1 to %d are possible", what, block.rows, GEMMINI_DIM);
  if (block.columns == 0 || block.columns > most_columns)
    gemmini_fault("%s has %u columns, from 1 to %u are possible", what, block.columns, most_columns);
  if (!block.accumulator && (block.accumulate || block.full))
    gemmini_fault("the address of %s is in the scratchpad, and has bits of accumulators", what);
  return block;
}

static uint64_t gemmini_row(const struct gemmini_block *block, const char *what, uint64_t offset) {
  uint64_t row = block->row + offset, rows = block->accumulator ? GEMMINI_ACC_ROWS : GEMMINI_SPAD_ROWS;
  if (row >= rows)
    gemmini_fault("%s reaches row %llu of the %s, which has %llu", what, (unsigned long long)row,
                  block->accumulator ? "accumulators" : "scratchpad", (unsigned long long)rows);
  return row;
}

static void gemmini_require(int written, const char *what, int accumulator, uint64_t row, unsigned column) {
  if (!written)
    gemmini_fault("%s reads row %llu, column %u of the %s, which nothing has written", what, (unsigned long long)row,
                  column, accumulator ? "accumulators" : "scratchpad");
}

/* Arithmetic. */

static gemmini_sum gemmini_add(gemmini_sum a, gemmini_sum b) {
#if GEMMINI_FLOAT
  return a + b;
#else
  return (gemmini_sum)((uint32_t)a + (uint32_t)b);
#endif
}

static gemmini_element gemmini_narrow(gemmini_sum value, float scale) {
#if GEMMINI_FLOAT
  return value * scale;
#else
  float scaled = (float)value * scale;
  int32_t whole;
  float rest;
  if (scaled >= 127) return 127;
  if (scaled <= -128) return -128;
  whole = (int32_t)scaled;
  rest = scaled - (float)whole;
  if (rest > 0.5f || (rest == 0.5f && whole % 2)) whole++;
  if (rest < -0.5f || (rest == -0.5f && whole % 2)) whole--;
  return (gemmini_element)whole;
#endif
}

static gemmini_element gemmini_activate(gemmini_element value, enum gemmini_activation activation) {
  return activation == GEMMINI_RELU && !(value > 0) ? 0 : value;
}

/* Instructions. */

static void gemmini_run_config(uint64_t rs1, uint64_t rs2) {
  switch (rs1 & 3) {
    case GEMMINI_CONFIG_EX:
      if (!gemmini_bits(rs1, 2, 1)) gemmini_fault("output stationary products are not modelled");
      gemmini_only("rs1", rs1, UINT64_C(0xffffffffffff001f));
      gemmini_only("rs2", rs2, UINT64_C(0xffff) << 48);
      gemmini.execute.activation = gemmini_activation_of(gemmini_bits(rs1, 3, 2));
      gemmini.execute.a_stride = gemmini_bits(rs1, 16, 16);
      gemmini.execute.c_stride = gemmini_bits(rs2, 48, 16);
      if (gemmini_scale(rs1 >> 32) != 1) gemmini_fault("a scale of products is not modelled");
      gemmini.execute.configured = 1;
      return;
    case GEMMINI_CONFIG_LD: {
      uint64_t number = gemmini_bits(rs1, 3, 2);
      struct gemmini_channel *channel = &gemmini.load[number % 3];
      gemmini_only("rs1", rs1, UINT64_C(0xffffffffffff011f));
      gemmini_only("rs2", rs2, UINT64_C(0xffffffff));
      if (number > 2) gemmini_fault("channel %llu does not exist", (unsigned long long)number);
      channel->narrow = (int)gemmini_bits(rs1, 2, 1);
      channel->block_stride = gemmini_bits(rs1, 16, 16);
      channel->scale = gemmini_scale(rs1 >> 32);
      channel->stride = rs2;
      channel->configured = 1;
      return;
    }
    case GEMMINI_CONFIG_ST:
      gemmini_only("rs1", rs1, 0xf);
      gemmini.store.activation = gemmini_activation_of(gemmini_bits(rs1, 2, 2));
      gemmini.store.stride = gemmini_bits(rs2, 0, 32);
      gemmini.store.scale = gemmini_scale(rs2 >> 32);
      if (gemmini.store.activation == GEMMINI_RELU && gemmini.store.scale < 0)
        gemmini_fault("a negative scale and an activation: implementations apply them in different orders");
      gemmini.store.configured = 1;
      return;
    default: gemmini_fault("this configuration does not exist");
  }
}

static void gemmini_run_mvin(uint64_t address, uint64_t rs2, const struct gemmini_channel *channel) {
  int accumulator = (int)gemmini_bits(rs2, 31, 1);
  unsigned width = accumulator ? sizeof(gemmini_sum) : sizeof(gemmini_element);
  struct gemmini_block to = gemmini_block_of(rs2, "the destination", GEMMINI_DMA_BYTES / width);
  unsigned bytes = accumulator && !channel->narrow ? sizeof(gemmini_sum) : sizeof(gemmini_element);

  if (to.none) gemmini_fault("has no destination");
  if (to.full) gemmini_fault("the destination has the bit of reads at full width");
  if (!channel->configured) gemmini_fault("its channel is not configured");
  if (to.columns > GEMMINI_DIM && channel->block_stride < to.rows)
    gemmini_fault("blocks of %u rows, %llu rows apart, overwrite each other", to.rows,
                  (unsigned long long)channel->block_stride);
  if (bytes != sizeof(gemmini_element) && !GEMMINI_FLOAT && channel->scale != 1)
    gemmini_fault("32-bit integers are not scaled on the way in");
  for (unsigned i = 0; i < to.rows; i++) {
    const uint8_t *from = address ? gemmini_read(address + i * channel->stride, (uint64_t)to.columns * bytes) : NULL;
    for (unsigned j = 0; j < to.columns; j++) {
      uint64_t row = gemmini_row(&to, "the destination", i + j / GEMMINI_DIM * channel->block_stride);
      unsigned column = j % GEMMINI_DIM;
      gemmini_sum value = 0;
      if (from && bytes == sizeof(gemmini_element)) {
        gemmini_element element;
        memcpy(&element, from + (size_t)j * bytes, sizeof element);
        value = gemmini_narrow(element, channel->scale);
      } else if (from) {
        memcpy(&value, from + (size_t)j * bytes, sizeof value);
        if (GEMMINI_FLOAT) value = (gemmini_sum)((float)value * channel->scale);
      }
      if (!to.accumulator) {
        gemmini.spad[row][column] = (gemmini_element)value;
        gemmini.spad_written[row][column] = 1;
        continue;
      }
      if (to.accumulate) {
        gemmini_require(gemmini.acc_written[row][column], "the sum", 1, row, column);
        value = gemmini_add(gemmini.acc[row][column], value);
      }
      gemmini.acc[row][column] = value;
      gemmini.acc_written[row][column] = 1;
    }
  }
}

static void gemmini_run_mvout(uint64_t address, uint64_t rs2) {
  struct gemmini_block from = gemmini_block_of(rs2, "the source", GEMMINI_DIM);
  unsigned bytes = from.full ? sizeof(gemmini_sum) : sizeof(gemmini_element);

  if (from.none) gemmini_fault("has no source");
  if (from.accumulate) gemmini_fault("the source has the bit of accumulation");
  if (!gemmini.store.configured) gemmini_fault("the store is not configured");
  for (unsigned i = 0; i < from.rows; i++) {
    uint64_t row = gemmini_row(&from, "the source", i);
    uint8_t *to = gemmini_write(address + i * gemmini.store.stride, (uint64_t)from.columns * bytes);
    for (unsigned j = 0; j < from.columns; j++) {
      gemmini_element element;
      gemmini_require(from.accumulator ? gemmini.acc_written[row][j] : gemmini.spad_written[row][j], "the source",
                      from.accumulator, row, j);
      if (from.full) {
        memcpy(to + (size_t)j * bytes, &gemmini.acc[row][j], bytes);
        continue;
      }
      element = from.accumulator ? gemmini_activate(gemmini_narrow(gemmini.acc[row][j], gemmini.store.scale),
                                                    gemmini.store.activation)
                                 : gemmini.spad[row][j];
      memcpy(to + (size_t)j * bytes, &element, bytes);
    }
  }
}

static void gemmini_run_preload(uint64_t rs1, uint64_t rs2) {
  if (!gemmini.execute.configured) gemmini_fault("products are not configured");
  if (gemmini.preloaded) gemmini_fault("the preload before has had no compute");
  gemmini.b = gemmini_block_of(rs1, "B", GEMMINI_DIM);
  gemmini.c = gemmini_block_of(rs2, "C", GEMMINI_DIM);
  if (!gemmini.b.none && gemmini.b.accumulator) gemmini_fault("B is in the accumulators");
  if (!gemmini.c.none && gemmini.c.full) gemmini_fault("C has the bit of reads at full width");
  gemmini.preloaded = 1;
}

/* A block of the scratchpad, zeros around it. */
static void gemmini_fetch(gemmini_sum into[GEMMINI_DIM][GEMMINI_DIM], const struct gemmini_block *block,
                          const char *what, uint64_t stride) {
  memset(into, 0, sizeof(gemmini_sum[GEMMINI_DIM][GEMMINI_DIM]));
  if (block->none) return;
  if (block->accumulator) gemmini_fault("%s is in the accumulators", what);
  for (unsigned i = 0; i < block->rows; i++) {
    uint64_t row = gemmini_row(block, what, i * stride);
    for (unsigned j = 0; j < block->columns; j++) {
      gemmini_require(gemmini.spad_written[row][j], what, 0, row, j);
      into[i][j] = gemmini.spad[row][j];
    }
  }
}

static void gemmini_run_compute(uint64_t rs1, uint64_t rs2, int preloaded) {
  static gemmini_sum a[GEMMINI_DIM][GEMMINI_DIM], sums[GEMMINI_DIM][GEMMINI_DIM];
  struct gemmini_block a_block = gemmini_block_of(rs1, "A", GEMMINI_DIM);
  struct gemmini_block d_block = gemmini_block_of(rs2, "D", GEMMINI_DIM);
  const struct gemmini_block *c = &gemmini.c;

  if (!gemmini.preloaded) gemmini_fault("there is no preload before it");
  if (a_block.none) gemmini_fault("has no A");
  if (!preloaded && !gemmini.b.none) gemmini_fault("B was preloaded, and it multiplies by the one before");
  if (preloaded) gemmini_fetch(gemmini.weights, &gemmini.b, "B", 1);
  if (preloaded) gemmini.has_weights = 1;
  if (!gemmini.has_weights) gemmini_fault("the mesh holds no B");
  gemmini_fetch(a, &a_block, "A", gemmini.execute.a_stride);
  gemmini_fetch(sums, &d_block, "D", 1);
  for (unsigned i = 0; i < GEMMINI_DIM; i++)
    for (unsigned k = 0; k < GEMMINI_DIM; k++)
      for (unsigned j = 0; j < GEMMINI_DIM; j++) sums[i][j] += a[i][k] * gemmini.weights[k][j];
  gemmini.preloaded = 0;
  if (c->none) return;
  if (c->rows > 1 && gemmini.execute.c_stride == 0) gemmini_fault("rows of C overwrite each other");
  for (unsigned i = 0; i < c->rows; i++) {
    uint64_t row = gemmini_row(c, "C", i * gemmini.execute.c_stride);
    for (unsigned j = 0; j < c->columns; j++) {
      gemmini_sum value = sums[i][j];
      if (!c->accumulator) {
        gemmini.spad[row][j] = gemmini_activate(gemmini_narrow(value, 1), gemmini.execute.activation);
        gemmini.spad_written[row][j] = 1;
        continue;
      }
      if (c->accumulate) {
        gemmini_require(gemmini.acc_written[row][j], "the sum", 1, row, j);
        value = gemmini_add(gemmini.acc[row][j], value);
      }
      gemmini.acc[row][j] = value;
      gemmini.acc_written[row][j] = 1;
    }
  }
}

static void gemmini_execute(const struct gemmini_instruction *instruction) {
  uint64_t rs1 = instruction->rs1, rs2 = instruction->rs2;
  gemmini.current = *instruction;
  switch (instruction->funct) {
    case GEMMINI_CONFIG: gemmini_run_config(rs1, rs2); break;
    case GEMMINI_MVIN: gemmini_run_mvin(rs1, rs2, &gemmini.load[0]); break;
    case GEMMINI_MVIN2: gemmini_run_mvin(rs1, rs2, &gemmini.load[1]); break;
    case GEMMINI_MVIN3: gemmini_run_mvin(rs1, rs2, &gemmini.load[2]); break;
    case GEMMINI_MVOUT: gemmini_run_mvout(rs1, rs2); break;
    case GEMMINI_PRELOAD: gemmini_run_preload(rs1, rs2); break;
    case GEMMINI_COMPUTE_PRELOADED: gemmini_run_compute(rs1, rs2, 1); break;
    case GEMMINI_COMPUTE_ACCUMULATED: gemmini_run_compute(rs1, rs2, 0); break;
    case GEMMINI_FLUSH: break;
    default: gemmini_fault("funct7 %u is not modelled", instruction->funct);
  }
  gemmini.executed++;
}

/* What gemmini.h calls. */

static void gemmini_finish(void) {
  if (gemmini.log && fclose(gemmini.log)) {
    fprintf(stderr, "gemmini: cannot write the log\n");
    _Exit(1);
  }
  if (gemmini.unfenced) {
    fprintf(stderr, "gemmini: the program ends %llu instructions after its last fence\n",
            (unsigned long long)gemmini.unfenced);
    _Exit(1);
  }
}

static void gemmini_start(void) {
  if (gemmini.started) return;
  gemmini.started = 1;
#if GEMMINI_FILES
  const char *path = getenv("GEMMINI_LOG"), *lazy = getenv("GEMMINI_LAZY");
  gemmini.lazy = lazy && strcmp(lazy, "1") == 0;
  if (path) {
    uint32_t words[4] = {GEMMINI_DIM, GEMMINI_FLOAT, GEMMINI_SPAD_ROWS, GEMMINI_ACC_ROWS};
    gemmini.log = fopen(path, "wb");
    if (!gemmini.log) {
      fprintf(stderr, "gemmini: cannot write the log %s\n", path);
      _Exit(1);
    }
    fwrite("GEMMINI1", 8, 1, gemmini.log);
    fwrite(words, sizeof words, 1, gemmini.log);
  }
#endif
  atexit(gemmini_finish);
}

void gemmini_model_region(const char *name, const volatile void *base, size_t bytes, int writable) {
  struct gemmini_region_state region = {name, gemmini_address(base), bytes, writable, NULL, 0, 0, NULL};
  gemmini_start();
  for (size_t i = 0; i < gemmini.region_count; i++) {
    const struct gemmini_region_state *other = &gemmini.regions[i];
    if (region.base == other->base && bytes == other->bytes && region.writable == other->writable) return;
    if (region.base < other->base + other->bytes && other->base < region.base + bytes) {
      fprintf(stderr, "gemmini: the regions %s and %s overlap\n", other->name, name);
      _Exit(1);
    }
  }
  region.stored = gemmini_memory(NULL, bytes);
  memset(region.stored, 0, bytes);
  if (gemmini.log) {
    region.known = gemmini_memory(NULL, bytes);
    memset(region.known, 0, bytes);
  }
  gemmini.regions = gemmini_memory(gemmini.regions, (gemmini.region_count + 1) * sizeof region);
  gemmini.regions[gemmini.region_count++] = region;
  gemmini_record('R' | (uint64_t)(writable != 0) << 8, region.base, region.bytes);
}

void gemmini_model(uint64_t rs1, uint64_t rs2, unsigned funct) {
  struct gemmini_instruction instruction = {rs1, rs2, funct};
  gemmini_start();
  gemmini.unfenced++;
  if (!gemmini.moving && (funct == GEMMINI_MVIN || funct == GEMMINI_MVIN2 || funct == GEMMINI_MVIN3 ||
                          funct == GEMMINI_MVOUT)) {
    gemmini.moving = 1;
    gemmini_record_contents('H');
  }
  gemmini_record('I' | (uint64_t)funct << 8, rs1, rs2);
  if (!gemmini.lazy) {
    gemmini_execute(&instruction);
    return;
  }
  if (gemmini.waiting_count == gemmini.waiting_room) {
    gemmini.waiting_room = gemmini.waiting_room ? 2 * gemmini.waiting_room : 1024;
    gemmini.waiting = gemmini_memory(gemmini.waiting, gemmini.waiting_room * sizeof instruction);
  }
  gemmini.waiting[gemmini.waiting_count++] = instruction;
}

void gemmini_model_fence(void) {
  for (size_t i = 0; i < gemmini.waiting_count; i++) gemmini_execute(&gemmini.waiting[i]);
  gemmini.waiting_count = 0;
  if (gemmini.moving) gemmini_record_contents('D');
  if (gemmini.unfenced) gemmini_record('F', 0, 0);
  gemmini.unfenced = 0;
  gemmini.moving = 0;
  for (size_t i = 0; i < gemmini.region_count; i++) {
    struct gemmini_region_state *region = &gemmini.regions[i];
    memset(region->stored + region->stored_low, 0, region->stored_high - region->stored_low);
    region->stored_low = region->stored_high = 0;
  }
}

#endif
