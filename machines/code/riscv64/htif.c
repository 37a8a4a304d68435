/*
 * What a C library needs of a machine without an operating system: characters out, and an end, told to the simulator
 * through HTIF: a word in `tohost` is a device [63:56], a command [55:48] and a payload [47:0].
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

volatile uint64_t tohost __attribute__((section(".tohost"), aligned(64)));
volatile uint64_t fromhost __attribute__((section(".tohost"), aligned(64)));

enum { EXIT = 0, CONSOLE = 1, PUT = 1 };

static void tell(uint64_t device, uint64_t command, uint64_t payload) {
  while (tohost) fromhost = 0;
  tohost = device << 56 | command << 48 | payload;
}

static int put(char character, FILE *file) {
  (void)file;
  tell(CONSOLE, PUT, (unsigned char)character);
  return (unsigned char)character;
}

static FILE console = FDEV_SETUP_STREAM(put, NULL, NULL, _FDEV_SETUP_WRITE);
FILE *const stdin = &console;
FILE *const stdout = &console;
FILE *const stderr = &console;

void _exit(int status) {
  tell(EXIT, 0, (uint64_t)(unsigned)status << 1 | 1);
  for (;;) {
  }
}

/* What a failed assertion ends in; there are no signals. */
void abort(void) { _exit(134); }

void machine_trap(uint64_t cause, uint64_t place, uint64_t value) {
  printf("trap %llu at %#llx, value %#llx\n", (unsigned long long)cause, (unsigned long long)place,
         (unsigned long long)value);
  _exit(70);
}
