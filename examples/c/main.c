/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Run a plan: main MODEL.plan INPUT... reads each input from a file of its bytes, and writes output_0.bin and so on.
 * An input that is not given is zeros.
 *
 *     D=$(python -c 'import penstock; print(penstock.get_include())')
 *     cc -std=c11 -O2 -I"$D" main.c "$D/penstock.c" -ldl -o main
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "penstock.h"

static void say(const char *what, penstock_tensor tensor) {
  printf("%s %s:", what, tensor.name);
  for (uint32_t dim = 0; dim < tensor.rank; ++dim) printf(" %" PRId64, tensor.shape[dim]);
  printf(", %zu bytes\n", tensor.bytes);
}

static int read_bytes(const char *path, void *bytes, size_t size) {
  FILE *file = fopen(path, "rb");
  const int is_whole = file != NULL && fread(bytes, 1, size, file) == size && fgetc(file) == EOF;
  if (!is_whole) fprintf(stderr, "%s: error: not a file of %zu bytes\n", path, size);
  if (file != NULL) fclose(file);
  return is_whole;
}

static int write_bytes(const char *path, const void *bytes, size_t size) {
  FILE *file = fopen(path, "wb");
  const int is_whole = file != NULL && fwrite(bytes, 1, size, file) == size;
  return (file == NULL || fclose(file) == 0) && is_whole;
}

int main(int count, char **words) {
  if (count < 2) {
    fprintf(stderr, "usage: %s MODEL.plan [INPUT...]\n", words[0]);
    return 2;
  }
  char error[512];
  penstock_plan *plan = penstock_load(words[1], error, sizeof error);
  if (plan == NULL) {
    fprintf(stderr, "%s\n", error);
    return 1;
  }
  const uint32_t input_count = penstock_input_count(plan), output_count = penstock_output_count(plan);
  const void **inputs = calloc(input_count + 1, sizeof *inputs);
  void **outputs = calloc(output_count + 1, sizeof *outputs);
  penstock_context *context = penstock_new_context(plan);
  int status = inputs == NULL || outputs == NULL || context == NULL;
  for (uint32_t number = 0; status == 0 && number < input_count; ++number) {
    const penstock_tensor tensor = penstock_input(plan, number);
    say("input", tensor);
    void *bytes = calloc(1, tensor.bytes + 1);
    inputs[number] = bytes;
    const int is_given = 2 + (int)number < count;
    status = bytes == NULL || (is_given && !read_bytes(words[2 + number], bytes, tensor.bytes));
  }
  for (uint32_t number = 0; status == 0 && number < output_count; ++number) {
    const penstock_tensor tensor = penstock_output(plan, number);
    say("output", tensor);
    outputs[number] = malloc(tensor.bytes + 1);
    status = outputs[number] == NULL;
  }
  if (status == 0) {
    const int fault = penstock_run(context, inputs, outputs);
    if (fault != 0) fprintf(stderr, "the program stopped: %s\n", penstock_fault(fault));
    status = fault != 0;
  }
  for (uint32_t number = 0; status == 0 && number < output_count; ++number) {
    char name[32];
    snprintf(name, sizeof name, "output_%" PRIu32 ".bin", number);
    status = !write_bytes(name, outputs[number], penstock_output(plan, number).bytes);
  }
  for (uint32_t number = 0; inputs != NULL && number < input_count; ++number) free((void *)inputs[number]);
  for (uint32_t number = 0; outputs != NULL && number < output_count; ++number) free(outputs[number]);
  free(inputs);
  free(outputs);
  penstock_free_context(context);
  penstock_free(plan);
  return status;
}
