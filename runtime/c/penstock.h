/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of Penstock in C: load one, run it. Build penstock.c with the program:
 *
 *     D=$(python -c 'import penstock; print(penstock.get_include())')
 *     cc -std=c11 -O2 -I"$D" main.c "$D/penstock.c" -ldl -o main
 *
 * A plan is code: loading one runs it with the rights of the process. Its checksums find damage, and not malice.
 */
#ifndef PENSTOCK_H
#define PENSTOCK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The element types of tensors. Those of less than a byte take one each; integers among them are sign-extended. */
typedef enum penstock_dtype {
  PENSTOCK_BOOL, PENSTOCK_I8, PENSTOCK_U8, PENSTOCK_I16, PENSTOCK_U16, PENSTOCK_I32, PENSTOCK_U32, PENSTOCK_I64,
  PENSTOCK_U64, PENSTOCK_F16, PENSTOCK_BF16, PENSTOCK_F32, PENSTOCK_F64, PENSTOCK_F8E4M3FN, PENSTOCK_F8E4M3FNUZ,
  PENSTOCK_F8E5M2, PENSTOCK_F8E5M2FNUZ, PENSTOCK_F8E8M0FNU, PENSTOCK_F4E2M1FN, PENSTOCK_I4, PENSTOCK_U4, PENSTOCK_I2,
  PENSTOCK_U2
} penstock_dtype;

/* An input or output: a dense array in row-major order. The pointers are valid until the plan is freed. */
typedef struct penstock_tensor {
  const char *name;
  penstock_dtype dtype;
  uint32_t rank;
  const int64_t *shape;
  size_t bytes;
} penstock_tensor;

typedef struct penstock_plan penstock_plan;       /* Code and weights: read-only, for any number of threads. */
typedef struct penstock_context penstock_context; /* The memory of one run at a time: make one per thread. */

/*
 * Map the plan at `path`, check all of it, and load its code. Where it cannot be used, the result is NULL and `error`,
 * an array of `size` bytes, says why. The file must not be changed in place as long as the plan is in use.
 */
penstock_plan *penstock_load(const char *path, char *error, size_t size);
/* Free a plan, after its contexts; NULL is free already. */
void penstock_free(penstock_plan *plan);

uint32_t penstock_input_count(const penstock_plan *plan);
uint32_t penstock_output_count(const penstock_plan *plan);
penstock_tensor penstock_input(const penstock_plan *plan, uint32_t number);
penstock_tensor penstock_output(const penstock_plan *plan, uint32_t number);

/* The number of threads that the plan was compiled for; the caller's is one of them. */
int penstock_threads(const penstock_plan *plan);

/* Memory for runs, and threads; NULL if there is not enough of either. */
penstock_context *penstock_new_context(const penstock_plan *plan);
/* The same with so many threads, from 1 to penstock_threads(plan): the outputs do not depend on it. */
penstock_context *penstock_new_context_with_threads(const penstock_plan *plan, int threads);
/* Free the memory and end the threads, after the last run. */
void penstock_free_context(penstock_context *context);

/*
 * Run once, on arrays in the order of the inputs and into arrays in the order of the outputs, none of which overlaps
 * another; nothing is copied or allocated. Returns 0, or a fault of the program, in words by penstock_fault.
 */
int penstock_run(penstock_context *context, const void *const *inputs, void *const *outputs);
const char *penstock_fault(int fault);

#ifdef __cplusplus
}
#endif
#endif
