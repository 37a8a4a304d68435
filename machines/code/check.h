/*
 * What a program computed against what it must: the first difference, printed. With PENSTOCK_EXACT floats have no
 * tolerance; with PENSTOCK_MEASURE the machine prints what a run takes.
 */
#ifndef PENSTOCK_CHECK_H
#define PENSTOCK_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef PENSTOCK_MEASURE
void penstock_before(void);
void penstock_after(void);
#else
#define penstock_before() ((void)0)
#define penstock_after() ((void)0)
#endif

/* Element `index` of an array of a type, "i8" to "u64", "f32", "f64" or "i1"; others are bytes. */
static inline double check_element(const char *type, const void *array, size_t index) {
  if (!strcmp(type, "f32")) return (double)((const float *)array)[index];
  if (!strcmp(type, "f64")) return ((const double *)array)[index];
  if (!strcmp(type, "i8")) return ((const int8_t *)array)[index];
  if (!strcmp(type, "i16")) return ((const int16_t *)array)[index];
  if (!strcmp(type, "u16")) return ((const uint16_t *)array)[index];
  if (!strcmp(type, "i32")) return ((const int32_t *)array)[index];
  if (!strcmp(type, "u32")) return ((const uint32_t *)array)[index];
  if (!strcmp(type, "i64")) return (double)((const int64_t *)array)[index];
  if (!strcmp(type, "u64")) return (double)((const uint64_t *)array)[index];
  return ((const uint8_t *)array)[index];
}

static inline size_t check_bytes(const char *type) {
  if (strstr(type, "64")) return 8;
  if (strstr(type, "32")) return 4;
  return strstr(type, "16") ? 2 : 1;
}

/*
 * Whether `count` elements differ from what is expected, and then says where first. A tolerance is relative to the
 * largest of the expected floats; 0 compares bits.
 */
static inline int check_output(const char *name, const char *type, const void *found, const void *expected,
                               size_t count, double tolerance) {
  size_t bytes = check_bytes(type), different = 0, first = 0;
  double bound = 0;
#ifdef PENSTOCK_EXACT
  tolerance = 0;
#endif
  for (size_t i = 0; tolerance > 0 && i < count; i++) {
    double value = check_element(type, expected, i);
    if (value < 0) value = -value;
    if (value > bound) bound = value;
  }
  bound *= tolerance;
  for (size_t i = 0; i < count; i++) {
    double difference = check_element(type, found, i) - check_element(type, expected, i);
    int same = !memcmp((const char *)found + i * bytes, (const char *)expected + i * bytes, bytes);
    if (same || (tolerance > 0 && difference <= bound && difference >= -bound)) continue;
    if (different++ == 0) first = i;
  }
  if (different)
    printf("%s[%lu] is %.9g, and %.9g is expected; %lu of %lu elements differ\n", name, (unsigned long)first,
           check_element(type, found, first), check_element(type, expected, first), (unsigned long)different,
           (unsigned long)count);
  return different != 0;
}

#endif
