/*
 * Gemmini's instructions in C11: one inline function each, all issued by gemmini_rocc.
 *
 * An instruction is RISC-V's custom-3 with two source registers, rs1 and rs2, and a number, funct7. On riscv64 it is
 * written with the assembler's .insn, so that any GNU or LLVM assembler takes it. With PENSTOCK_MODEL defined it goes
 * to the functional model instead, in a program of which exactly one file includes "model.h".
 *
 * Bits, of rs1 and rs2, lowest first (documents: README.md of ucb-bar/gemmini, ISA; gemmini.h of
 * ucb-bar/gemmini-rocc-tests for what the README leaves out):
 *
 *   a block      local address [31:0], columns [47:32], rows [63:48]
 *   local        row [28:0], full width [29], accumulate [30], accumulator [31]; all ones: no matrix
 *   mvin*        rs1 address off chip (0: zeros), rs2 block
 *   mvout        rs1 address off chip, rs2 block
 *   preload      rs1 block of B, rs2 block of C
 *   compute      rs1 block of A, rs2 block of D
 *   config_ex    rs1 0 [1:0], weight stationary [2], activation [4:3], A stride in rows [31:16],
 *                scale as float32 [63:32]; rs2 C stride in rows [63:48]
 *   config_ld    rs1 1 [1:0], narrow [2], channel [4:3], pixel repeats [15:8], block stride in rows [31:16],
 *                scale as float32 [63:32]; rs2 stride in bytes
 *   config_st    rs1 2 [1:0], activation [3:2], pooling [63:4]; rs2 stride in bytes [31:0], scale as float32 [63:32]
 *
 * A value that its field cannot hold fails an assertion; NDEBUG leaves the assertions out.
 */
#ifndef PENSTOCK_GEMMINI_H
#define PENSTOCK_GEMMINI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What the generator is configured with; defaults are those of machines/gemmini.toml. */
#ifndef GEMMINI_DIM
#define GEMMINI_DIM 16 /* rows and columns of the mesh, elements of a local row */
#endif
#ifndef GEMMINI_FLOAT
#define GEMMINI_FLOAT 0 /* 0: int8_t into int32_t; 1: float into float */
#endif
#ifndef GEMMINI_SPAD_ROWS
#define GEMMINI_SPAD_ROWS 16384
#endif
#ifndef GEMMINI_ACC_ROWS
#define GEMMINI_ACC_ROWS 1024
#endif
#ifndef GEMMINI_DMA_BYTES
#define GEMMINI_DMA_BYTES 64 /* the longest row of one mvin, in bytes of the local memory */
#endif

#if GEMMINI_FLOAT
typedef float gemmini_element;
typedef float gemmini_sum;
#else
typedef int8_t gemmini_element;
typedef int32_t gemmini_sum;
#endif

enum gemmini_funct {
  GEMMINI_CONFIG = 0,
  GEMMINI_MVIN2 = 1,
  GEMMINI_MVIN = 2,
  GEMMINI_MVOUT = 3,
  GEMMINI_COMPUTE_PRELOADED = 4,
  GEMMINI_COMPUTE_ACCUMULATED = 5,
  GEMMINI_PRELOAD = 6,
  GEMMINI_FLUSH = 7,
  GEMMINI_MVIN3 = 14
};

enum gemmini_config { GEMMINI_CONFIG_EX = 0, GEMMINI_CONFIG_LD = 1, GEMMINI_CONFIG_ST = 2 };

enum gemmini_activation { GEMMINI_IDENTITY = 0, GEMMINI_RELU = 1 };

#define GEMMINI_NONE UINT32_C(0xffffffff) /* the local address of no matrix */

/* Issuing. */

#ifdef __GNUC__
#define GEMMINI_INLINE static inline __attribute__((always_inline))
#else
#define GEMMINI_INLINE static inline
#endif

#ifdef PENSTOCK_MODEL

void gemmini_model(uint64_t rs1, uint64_t rs2, unsigned funct);
void gemmini_model_fence(void);
void gemmini_model_region(const char *name, const volatile void *base, size_t bytes, int writable);

static inline void gemmini_rocc(uint64_t rs1, uint64_t rs2, unsigned funct) { gemmini_model(rs1, rs2, funct); }

#else

#define GEMMINI_INSN(funct) \
  case funct: \
    __asm__ volatile(".insn r CUSTOM_3, 3, " #funct ", x0, %0, %1" ::"r"(rs1), "r"(rs2) : "memory"); \
    return

/* The number is part of the instruction, so a switch; inlined, it folds away where the number is a constant. */
GEMMINI_INLINE void gemmini_rocc(uint64_t rs1, uint64_t rs2, unsigned funct) {
  switch (funct) {
    GEMMINI_INSN(0);
    GEMMINI_INSN(1);
    GEMMINI_INSN(2);
    GEMMINI_INSN(3);
    GEMMINI_INSN(4);
    GEMMINI_INSN(5);
    GEMMINI_INSN(6);
    GEMMINI_INSN(7);
    GEMMINI_INSN(14);
    default: assert(!"an instruction of Gemmini");
  }
}

#endif

/* Memory off chip that instructions may touch, by name; only the model asks. */
static inline void gemmini_region(const char *name, const volatile void *base, size_t bytes, int writable) {
#ifdef PENSTOCK_MODEL
  gemmini_model_region(name, base, bytes, writable);
#else
  (void)name, (void)base, (void)bytes, (void)writable;
#endif
}

/* Wait for all instructions; what they have written off chip can be read afterwards, by mvin as by the host. */
static inline void gemmini_fence(void) {
#ifdef PENSTOCK_MODEL
  gemmini_model_fence();
#else
  __asm__ volatile("fence" ::: "memory");
#endif
}

/* Fields. */

static inline uint64_t gemmini_field(uint64_t value, unsigned low, unsigned width) {
  assert(value >> width == 0 && "the value fits into its field");
  return value << low;
}

static inline uint32_t gemmini_float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline uint32_t gemmini_spad(uint64_t row) {
  assert(row < GEMMINI_SPAD_ROWS && "a row of the scratchpad");
  return (uint32_t)row;
}

/* Accumulators: overwritten where written, at the width of an element where read, unless one of the bits is added. */
static inline uint32_t gemmini_acc(uint64_t row) {
  assert(row < GEMMINI_ACC_ROWS && "a row of the accumulators");
  return UINT32_C(1) << 31 | (uint32_t)row;
}

#define GEMMINI_ACCUMULATE (UINT32_C(1) << 30) /* added to, of what is written */
#define GEMMINI_FULL (UINT32_C(1) << 29)       /* at full width, without activation or scale, of what is read */

static inline uint64_t gemmini_block(uint32_t local, uint64_t columns, uint64_t rows) {
  return gemmini_field(rows, 48, 16) | gemmini_field(columns, 32, 16) | local;
}

/* Moves. */

static inline uint64_t gemmini_address(const volatile void *pointer) { return (uint64_t)(uintptr_t)pointer; }

/*
 * Move `rows` rows, a configured stride apart, into consecutive local rows; NULL moves zeros in. Rows of more than
 * GEMMINI_DIM columns are cut into blocks of that width, which go a configured number of local rows apart. Each of the
 * channels 0 (mvin), 1 (mvin2) and 2 (mvin3) has a configuration of its own.
 */
GEMMINI_INLINE void gemmini_mvin_by(unsigned channel, const volatile void *from, uint32_t to, uint64_t columns,
                                    uint64_t rows) {
  assert(channel < 3 && "one of three channels");
  gemmini_rocc(gemmini_address(from), gemmini_block(to, columns, rows),
               channel == 0 ? GEMMINI_MVIN : channel == 1 ? GEMMINI_MVIN2 : GEMMINI_MVIN3);
}

static inline void gemmini_mvout(volatile void *to, uint32_t from, uint64_t columns, uint64_t rows) {
  gemmini_rocc(gemmini_address(to), gemmini_block(from, columns, rows), GEMMINI_MVOUT);
}

/* Products, weight stationary: C = A * B + D, or C += A * B + D. Of B, A and D, what lies outside the block is 0. */

/* Say where C goes, and B for the next compute_preloaded; GEMMINI_NONE as B before compute_accumulated. */
static inline void gemmini_preload(uint32_t b, uint64_t b_columns, uint64_t b_rows, uint32_t c, uint64_t c_columns,
                                   uint64_t c_rows) {
  gemmini_rocc(gemmini_block(b, b_columns, b_rows), gemmini_block(c, c_columns, c_rows), GEMMINI_PRELOAD);
}

/* Load B into the mesh and multiply. */
static inline void gemmini_compute_preloaded(uint32_t a, uint64_t a_columns, uint64_t a_rows, uint32_t d,
                                             uint64_t d_columns, uint64_t d_rows) {
  gemmini_rocc(gemmini_block(a, a_columns, a_rows), gemmini_block(d, d_columns, d_rows), GEMMINI_COMPUTE_PRELOADED);
}

/* Multiply by the B that is in the mesh. */
static inline void gemmini_compute_accumulated(uint32_t a, uint64_t a_columns, uint64_t a_rows, uint32_t d,
                                               uint64_t d_columns, uint64_t d_rows) {
  gemmini_rocc(gemmini_block(a, a_columns, a_rows), gemmini_block(d, d_columns, d_rows), GEMMINI_COMPUTE_ACCUMULATED);
}

/* Configuration. Nothing is configured at the beginning. */

/* Of products: an activation on the way into the scratchpad, and how many rows apart those of A and of C are. */
static inline void gemmini_config_ex(enum gemmini_activation activation, uint64_t a_stride, uint64_t c_stride) {
  gemmini_rocc((uint64_t)gemmini_float_bits(1.0f) << 32 | gemmini_field(a_stride, 16, 16) |
                   gemmini_field((uint64_t)activation, 3, 2) | 1u << 2 | GEMMINI_CONFIG_EX,
               gemmini_field(c_stride, 48, 16), GEMMINI_CONFIG);
}

/*
 * Of one of the channels: bytes between rows off chip, local rows between blocks, and a factor.
 * `narrow` says that what goes to the accumulators has the type of elements off chip.
 */
static inline void gemmini_config_ld(uint64_t channel, uint64_t stride, uint64_t block_stride, float scale,
                                     int narrow) {
  assert(channel < 3 && "one of three channels");
  assert(stride >> 32 == 0 && "the value fits into its field");
  gemmini_rocc((uint64_t)gemmini_float_bits(scale) << 32 | gemmini_field(block_stride, 16, 16) | 1u << 8 |
                   gemmini_field(channel, 3, 2) | gemmini_field((uint64_t)narrow, 2, 1) | GEMMINI_CONFIG_LD,
               stride, GEMMINI_CONFIG);
}

/* Of mvout: bytes between rows off chip; what accumulators read at the width of elements are scaled and activated by. */
static inline void gemmini_config_st(uint64_t stride, enum gemmini_activation activation, float scale) {
  gemmini_rocc(gemmini_field((uint64_t)activation, 2, 2) | GEMMINI_CONFIG_ST,
               (uint64_t)gemmini_float_bits(scale) << 32 | gemmini_field(stride, 0, 32), GEMMINI_CONFIG);
}

/* Empty the translation buffer, before the first instruction of a program. */
static inline void gemmini_flush(void) { gemmini_rocc(0, 0, GEMMINI_FLUSH); }

#endif
