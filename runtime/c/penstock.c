/* SPDX-License-Identifier: Apache-2.0 */
/* The implementation of penstock.h, for POSIX. The format of plans stands in penstock/runtime/plan.py. */
#define _GNU_SOURCE /* memfd_create */
#include "penstock.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { FORMAT = 1, BLOCK_BYTES = 4096, ALIGNMENT = 64, MOST_FEATURES_BYTES = 1 << 14 };
static const char MAGIC[8] = "\x89PENPLAN";

typedef struct header {
  char magic[8];
  uint32_t format;
  uint32_t checksum;
  uint64_t bytes;
  uint32_t sections;
  uint32_t unused;
} header;

typedef struct section {
  char name[16];
  uint64_t offset;
  uint64_t bytes;
  uint32_t checksum;
  uint32_t unused;
} section;

typedef struct tensor {
  uint32_t dtype;
  uint32_t rank;
  uint64_t bytes;
  uint64_t offset; /* of a weight, in the section of weights */
  uint32_t shape;  /* the offset of the shape in the section of tensors, as that of the name */
  uint32_t name;
  uint32_t name_bytes;
  uint32_t unused;
} tensor;

struct penstock_plan {
  unsigned char *file; /* the mapping */
  size_t bytes;
  uint32_t counts[4]; /* of inputs, weights and outputs */
  const unsigned char *table;
  const tensor *tensors;
  const void **weights;
  void *library;
  int handle; /* of the code as a file; open as long as the library, whose name is made of its number */
  size_t (*context_size)(void);
  int (*run)(void *, const void *const *, const void *const *, void *const *);
  int (*threads)(void); /* NULL, as the next two, in code of one thread */
  int (*start)(void *, int);
  void (*stop)(void *);
};

struct penstock_context {
  const penstock_plan *plan;
  void *memory;
};

typedef struct message {
  char *text;
  size_t size;
  const char *path;
} message;

/* Write `PATH: error: ...`; the result is 0, for `return fail(...)`. */
static int fail(const message *error, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int at = error->size ? snprintf(error->text, error->size, "%s: error: ", error->path) : -1;
  if (at >= 0 && (size_t)at < error->size) vsnprintf(error->text + at, error->size - (size_t)at, format, arguments);
  va_end(arguments);
  return 0;
}

/* The CRC-32 of the sums of the 64-bit numbers of each block. */
static uint32_t checksum(const unsigned char *data, uint64_t bytes) {
  uint32_t table[256];
  for (uint32_t number = 0; number < 256; ++number) {
    uint32_t entry = number;
    for (int bit = 0; bit < 8; ++bit) entry = entry & 1 ? entry >> 1 ^ UINT32_C(0xedb88320) : entry >> 1;
    table[number] = entry;
  }
  uint32_t crc = UINT32_MAX;
  for (; bytes > 0; bytes -= BLOCK_BYTES, data += BLOCK_BYTES) {
    uint64_t sum = 0;
    for (int at = 0; at < BLOCK_BYTES; at += 8) {
      uint64_t word;
      memcpy(&word, data + at, sizeof word);
      sum += word;
    }
    for (int byte = 0; byte < 64; byte += 8) crc = table[(crc ^ sum >> byte) & 255] ^ crc >> 8;
  }
  return ~crc;
}

static int check_header(const penstock_plan *plan, const message *error) {
  const header *start = (const header *)plan->file;
  if (plan->bytes < sizeof MAGIC || memcmp(start->magic, MAGIC, sizeof MAGIC) != 0) return fail(error, "not a plan");
  if (plan->bytes < BLOCK_BYTES) return fail(error, "the plan is truncated: it has %zu bytes", plan->bytes);
  if (start->format != FORMAT) return fail(error, "the plan has format %u, and this code reads %d", start->format, FORMAT);
  unsigned char block[BLOCK_BYTES]; /* with zeros in the place of the checksum */
  memcpy(block, plan->file, BLOCK_BYTES);
  memset(block + offsetof(header, checksum), 0, sizeof start->checksum);
  if (checksum(block, BLOCK_BYTES) != start->checksum) {
    return fail(error, "the plan is damaged: its header has another checksum");
  }
  if (start->bytes != plan->bytes) {
    const char *fault = plan->bytes < start->bytes ? "truncated" : "damaged";
    return fail(error, "the plan is %s: it has %zu bytes of %llu", fault, plan->bytes, (unsigned long long)start->bytes);
  }
  const section *sections = (const section *)(start + 1);
  for (uint32_t number = 0; number < start->sections; ++number) {
    const section *each = &sections[number];
    const uint64_t padded = (each->bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    if (checksum(plan->file + each->offset, padded) != each->checksum) {
      return fail(error, "the plan is damaged: its section \"%.16s\" has another checksum", each->name);
    }
  }
  return 1;
}

/* The section of a name, and its size; NULL if there is none. */
static const unsigned char *find(const penstock_plan *plan, const char *name, size_t *bytes) {
  const header *start = (const header *)plan->file;
  const section *each = (const section *)(start + 1);
  for (uint32_t number = 0; number < start->sections; ++number, ++each) {
    if (strncmp(each->name, name, sizeof each->name) != 0) continue;
    if (bytes != NULL) *bytes = each->bytes;
    return plan->file + each->offset;
  }
  return NULL;
}

/* Whether `word`, of `length` characters, is one of the words of `line`. */
static int has_word(const char *line, const char *word, size_t length) {
  for (const char *at = line; (at = strstr(at, word)) != NULL; at += length) {
    if ((at == line || isspace((unsigned char)at[-1])) && (at[length] == '\0' || isspace((unsigned char)at[length]))) return 1;
  }
  return 0;
}

/* The first line of /proc/cpuinfo that lists features, with a zero at its end; NULL where the system does not tell. */
static const char *cpu_features(char *text, size_t size) {
  const int file = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
  const ssize_t length = file < 0 ? -1 : read(file, text, size - 1);
  if (file >= 0) close(file);
  if (length <= 0) return NULL;
  text[length] = '\0';
  char *line = strstr(text, "\nflags");
  if (line == NULL) line = strstr(text, "\nFeatures");
  if (line == NULL || (line = strchr(line, ':')) == NULL) return NULL;
  line[strcspn(line, "\n")] = '\0';
  return line + 1;
}

static int check_cpu(const penstock_plan *plan, const message *error) {
  size_t bytes;
  const char *needed = (const char *)find(plan, "cpu", &bytes);
  if (needed == NULL || bytes > MOST_FEATURES_BYTES) return fail(error, "the plan does not say what CPU it is for");
  char wanted[MOST_FEATURES_BYTES + 1], have[MOST_FEATURES_BYTES], here[2 * sizeof(struct utsname)];
  memcpy(wanted, needed, bytes);
  wanted[bytes] = '\0';
  struct utsname system;
  uname(&system);
  snprintf(here, sizeof here, "%s %s", system.sysname, system.machine);
  for (char *letter = here; *letter; ++letter) *letter = (char)tolower((unsigned char)*letter);
  char *features = wanted + strcspn(wanted, "\n");
  if (*features) *features++ = '\0';
  if (strcmp(wanted, here) != 0) return fail(error, "the plan is code for %s, and this is %s", wanted, here);
  const char *line = cpu_features(have, sizeof have);
  for (char *word = strtok(features, " \n"); line != NULL && word != NULL; word = strtok(NULL, " \n")) {
    if (!has_word(line, word, strlen(word))) {
      return fail(error, "the plan needs a feature that this CPU does not have: %s", word);
    }
  }
  return 1;
}

/* The code as an open file whose path is `path`; -1 where none can be made. */
static int code_file(const unsigned char *code, size_t bytes, char *path, size_t size) {
#if defined(__linux__)
  const int handle = memfd_create("penstock-plan", MFD_CLOEXEC);
  if (handle >= 0) snprintf(path, size, "/proc/self/fd/%d", handle);
#else
  const char *folder = getenv("TMPDIR");
  snprintf(path, size, "%s/penstock-XXXXXX", folder != NULL ? folder : "/tmp");
  const int handle = mkstemp(path); /* which only this user may write */
#endif
  for (size_t at = 0; handle >= 0 && at < bytes;) {
    const ssize_t written = write(handle, code + at, bytes - at);
    if (written < 0 && errno != EINTR) {
      close(handle);
      return -1;
    }
    at += written < 0 ? 0 : (size_t)written;
  }
  return handle;
}

static int load_code(penstock_plan *plan, const message *error) {
  size_t bytes;
  const unsigned char *code = find(plan, "code", &bytes);
  if (code == NULL) return fail(error, "the plan has no machine code");
  char path[4096];
  plan->handle = code_file(code, bytes, path, sizeof path);
  if (plan->handle < 0) return fail(error, "the code has no file: %s", strerror(errno));
  plan->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
#if !defined(__linux__)
  unlink(path);
#endif
  if (plan->library == NULL) return fail(error, "the code is not loaded: %s", dlerror());
  /* ISO C has no conversion of a pointer to a function; POSIX has it this way. */
  *(void **)&plan->context_size = dlsym(plan->library, "main_context_size");
  *(void **)&plan->run = dlsym(plan->library, "main_run");
  *(void **)&plan->threads = dlsym(plan->library, "main_threads");
  *(void **)&plan->start = dlsym(plan->library, "main_start");
  *(void **)&plan->stop = dlsym(plan->library, "main_stop");
  return plan->context_size != NULL && plan->run != NULL ? 1 : fail(error, "the code has no entry");
}

static int read_tensors(penstock_plan *plan, const message *error) {
  plan->table = find(plan, "tensors", NULL);
  const unsigned char *weights = find(plan, "weights", NULL);
  if (plan->table == NULL || weights == NULL) return fail(error, "the sections of the plan do not fit");
  memcpy(plan->counts, plan->table, sizeof plan->counts);
  plan->tensors = (const tensor *)(plan->table + sizeof plan->counts);
  plan->weights = malloc((plan->counts[1] + 1) * sizeof *plan->weights);
  if (plan->weights == NULL) return fail(error, "out of memory");
  for (uint32_t number = 0; number < plan->counts[1]; ++number) {
    plan->weights[number] = weights + plan->tensors[plan->counts[0] + number].offset;
  }
  for (uint32_t number = 0; number < plan->counts[0] + plan->counts[1] + plan->counts[2]; ++number) {
    const int64_t *shape = (const int64_t *)(plan->table + plan->tensors[number].shape);
    for (uint32_t dim = 0; dim < plan->tensors[number].rank; ++dim) {
      if (shape[dim] < 0) return fail(error, "the plan has sizes that only a run knows, which this reader cannot give");
    }
  }
  return 1;
}

static int map_file(penstock_plan *plan, const message *error) {
  const int file = open(error->path, O_RDONLY | O_CLOEXEC);
  struct stat info;
  if (file < 0) return fail(error, "cannot read the plan: %s", strerror(errno));
  if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) {
    close(file);
    return fail(error, "not a plan");
  }
  plan->bytes = (size_t)info.st_size;
  void *found = mmap(NULL, plan->bytes, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (found == MAP_FAILED) return fail(error, "cannot map the plan: %s", strerror(errno));
  plan->file = found;
  return 1;
}

penstock_plan *penstock_load(const char *path, char *error, size_t size) {
  const message place = {error, size, path};
  penstock_plan *plan = calloc(1, sizeof *plan);
  if (plan == NULL) {
    fail(&place, "out of memory");
    return NULL;
  }
  plan->handle = -1;
  if (map_file(plan, &place) && check_header(plan, &place) && check_cpu(plan, &place) && read_tensors(plan, &place) &&
      load_code(plan, &place)) {
    return plan;
  }
  penstock_free(plan);
  return NULL;
}

void penstock_free(penstock_plan *plan) {
  if (plan == NULL) return;
  if (plan->library != NULL) dlclose(plan->library);
  if (plan->handle >= 0) close(plan->handle);
  if (plan->file != NULL) munmap(plan->file, plan->bytes);
  free(plan->weights);
  free(plan);
}

static penstock_tensor describe(const penstock_plan *plan, uint32_t number) {
  const tensor *each = &plan->tensors[number];
  const char *name = (const char *)plan->table + each->name;
  const int64_t *shape = (const int64_t *)(plan->table + each->shape);
  return (penstock_tensor){name, (penstock_dtype)each->dtype, each->rank, shape, each->bytes};
}

uint32_t penstock_input_count(const penstock_plan *plan) { return plan->counts[0]; }
uint32_t penstock_output_count(const penstock_plan *plan) { return plan->counts[2]; }
penstock_tensor penstock_input(const penstock_plan *plan, uint32_t number) { return describe(plan, number); }
penstock_tensor penstock_output(const penstock_plan *plan, uint32_t number) {
  return describe(plan, plan->counts[0] + plan->counts[1] + number);
}

int penstock_threads(const penstock_plan *plan) { return plan->threads != NULL ? plan->threads() : 1; }

penstock_context *penstock_new_context(const penstock_plan *plan) {
  return penstock_new_context_with_threads(plan, penstock_threads(plan));
}

penstock_context *penstock_new_context_with_threads(const penstock_plan *plan, int threads) {
  if (threads < 1 || threads > penstock_threads(plan)) return NULL;
  penstock_context *context = malloc(sizeof *context);
  if (context == NULL) return NULL;
  const size_t size = (plan->context_size() + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  *context = (penstock_context){plan, aligned_alloc(ALIGNMENT, size)};
  if (context->memory != NULL && (plan->start == NULL || plan->start(context->memory, threads) == 0)) return context;
  free(context->memory);
  free(context);
  return NULL;
}

void penstock_free_context(penstock_context *context) {
  if (context == NULL) return;
  if (context->plan->stop != NULL) context->plan->stop(context->memory);
  free(context->memory);
  free(context);
}

int penstock_run(penstock_context *context, const void *const *inputs, void *const *outputs) {
  const penstock_plan *plan = context->plan;
  return plan->run(context->memory, plan->weights, inputs, outputs);
}

const char *penstock_fault(int fault) {
  static const char *const words[] = {"no fault", "division by zero", "an index outside its dimension"};
  return fault >= 0 && fault < 3 ? words[fault] : "a fault that is not known";
}
