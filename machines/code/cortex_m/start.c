/* What is executed before main on a Cortex-M: the floating point unit, the sections of data, semihosting. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __has_include("nn_s8.h")
#include "nn_s8.h"

_Alignas(8) unsigned char nn_dtcm[NN_DTCM_BYTES];

void nn_begin(void) {}
#endif

extern char __data_start, __data_end, __data_load, __bss_start__, __bss_end__, __stack_top;
extern int main(void);
extern void initialise_monitor_handles(void);

void _init(void) {}
void _fini(void) {}

__attribute__((used)) static void run(void) {
  memcpy(&__data_start, &__data_load, (size_t)(&__data_end - &__data_start));
  memset(&__bss_start__, 0, (size_t)(&__bss_end__ - &__bss_start__));
  initialise_monitor_handles();
  exit(main());
}

/* Coprocessors 10 and 11, in CPACR, before any function that may use their registers. */
__attribute__((naked, used)) static void reset(void) {
  __asm__ volatile(
      "ldr r0, =0xE000ED88\n"
      "ldr r1, [r0]\n"
      "orr r1, r1, #0xF00000\n"
      "str r1, [r0]\n"
      "dsb\n"
      "isb\n"
      "b run\n");
}

__attribute__((used)) static void fault(void) { _Exit(1); }

#ifdef PENSTOCK_MEASURE
/* The timer that every Cortex-M has counts 24 bits down: its exception counts the rounds. */
#define ROUND 0x1000000u
static volatile uint32_t *const timer = (uint32_t *)0xE000E010; /* control, what it begins with, its value */
static volatile uint32_t rounds;
static uint32_t *painted;

__attribute__((used)) static void tick(void) { rounds++; }

extern void *_sbrk(ptrdiff_t);

/* What lies between the heap and the stack is painted. */
void penstock_before(void) {
  uint32_t *end = __builtin_frame_address(0);
  painted = (uint32_t *)(((uintptr_t)_sbrk(0) + 3) & ~(uintptr_t)3);
  for (volatile uint32_t *at = painted; at < end - 16; at++) *at = 0xC5C5C5C5;
  timer[1] = ROUND - 1;
  timer[2] = 0;
  timer[0] = 7;
}

void penstock_after(void) {
  uint32_t left = timer[2], before = rounds;
  timer[0] = 0;
  const uint32_t *at = painted, *end = __builtin_frame_address(0);
  while (at < end && *at == 0xC5C5C5C5) at++;
  unsigned long long cycles = (unsigned long long)before * ROUND + (ROUND - 1 - left);
  printf("stack %lu bytes, %llu cycles of the timer\n", (unsigned long)((const char *)end - (const char *)at), cycles);
}
#else
#define tick fault
#endif

__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
    &__stack_top, (void *)reset, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)fault,
    [15] = (void *)tick,
};
