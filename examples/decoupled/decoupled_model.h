/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the units do, in an order that the tokens permit: with DECOUPLED=N one that N draws, else each unit runs as far
 * ahead as it can, the last one (0, the default) or the first one (-1) before the others.
 */
#include <stdio.h>
#include <stdlib.h>

typedef struct {
  int command;
  uint64_t word[7];
} entry;

static entry *streams[UNITS];
static size_t issued[UNITS], done[UNITS], room[UNITS];
static unsigned tokens[UNITS][UNITS]; /* from, to */
static float memory[(SUMS + 8192) / 4];

void decoupled(int unit, int command, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t rows, uint64_t columns,
               uint64_t depth) {
  if (issued[unit] == room[unit]) {
    room[unit] = 2 * room[unit] + 64;
    streams[unit] = (entry *)realloc(streams[unit], room[unit] * sizeof(entry));
  }
  streams[unit][issued[unit]++] = (entry){command, {a, b, c, d, rows, columns, depth}};
}

/* A place on chip, or off chip: a pointer. */
static float *place(uint64_t address, uint64_t row, uint64_t pitch, uint64_t column) {
  char *at = address < sizeof memory ? (char *)memory + address : (char *)(uintptr_t)address;
  return (float *)(void *)(at + row * pitch) + column;
}

static int step(int unit) { /* whether there was something to do that need not wait */
  if (done[unit] == issued[unit]) return 0;
  const entry *it = &streams[unit][done[unit]];
  const uint64_t *w = it->word;
  if (it->command == PUSH && tokens[unit][w[0]] == 8) return 0;
  if (it->command == POP && !tokens[w[0]][unit]) return 0;
  if (it->command == PUSH) tokens[unit][w[0]]++;
  if (it->command == POP) tokens[w[0]][unit]--;
  if (it->command >= MOVE)
    for (uint64_t i = 0; i < w[4]; i++)
      for (uint64_t j = 0; j < w[5]; j++) {
        float *to = place(w[0], i, w[1], j);
        if (it->command == CLEAR) *to = 0;
        if (it->command == MOVE) *to = *place(w[2], i, w[3], j);
        if (it->command == ADD) *to += *place(w[2], i, w[3], j);
        for (uint64_t k = 0; it->command == PRODUCT && k < w[6]; k++)
          *to += *place((uint32_t)w[2], i, w[3] >> 32, k) * *place(w[2] >> 32, k, (uint32_t)w[3], j);
      }
  done[unit]++;
  return 1;
}

void decoupled_fence(void) {
  static int begun;
  const char *given = getenv("DECOUPLED");
  int seed = given ? atoi(given) : 0;
  srand((unsigned)seed);
  if (!begun++) memset(memory, 0xff, sizeof memory);
  for (int moved = 1; moved;) {
    moved = 0;
    if (seed > 0) moved = step(rand() % UNITS);
    for (int unit = 0; !moved && unit < UNITS; unit++) moved = step(seed < 0 ? unit : UNITS - 1 - unit);
  }
  for (int unit = 0; unit < UNITS; unit++) {
    int leaks = tokens[unit][LOAD] || tokens[unit][EXECUTE] || tokens[unit][STORE];
    if (done[unit] != issued[unit] || leaks) {
      printf(leaks ? "tokens of unit %d are left\n" : "unit %d waits for ever\n", unit);
      exit(1);
    }
    issued[unit] = done[unit] = 0;
  }
}
