/* What is executed before main on a 32-bit RISC-V: the stack, the sections of data; output is by semihosting. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the registers of the core; compilers differ in whether the base has them. */
__asm__(".option arch, +zicsr");

extern char __data_start, __data_end, __data_load, __bss_start__, __bss_end__;
extern int main(void);

__attribute__((used, noreturn)) static void run(void) {
  memcpy(&__data_start, &__data_load, (size_t)(&__data_end - &__data_start));
  memset(&__bss_start__, 0, (size_t)(&__bss_end__ - &__bss_start__));
  exit(main());
}

/* First in the memory of code, where the core begins; a trap ends the program. */
__attribute__((naked, used, section(".vectors"))) void _start(void) {
  __asm__ volatile(
      "la sp, __stack_top\n"
      "la t0, 1f\n"
      "csrw mtvec, t0\n"
      "j %0\n"
      ".balign 4\n"
      "1: li a0, 1\n"
      "j _Exit\n"
      :
      : "i"(run));
}

#ifdef PENSTOCK_MEASURE
static uint32_t *painted;
static uint64_t began;

/* The instructions that were executed. */
static uint64_t instructions(void) {
  uint32_t low, high, again;
  do {
    __asm__ volatile("csrr %0, minstreth\ncsrr %1, minstret\ncsrr %2, minstreth" : "=r"(high), "=r"(low), "=r"(again));
  } while (high != again);
  return (uint64_t)high << 32 | low;
}

/* What lies between data and the stack is painted: there is no heap. */
void penstock_before(void) {
  uint32_t *end = __builtin_frame_address(0);
  painted = (uint32_t *)(((uintptr_t)&__bss_end__ + 3) & ~(uintptr_t)3);
  for (volatile uint32_t *at = painted; at < end - 16; at++) *at = 0xC5C5C5C5;
  began = instructions();
}

void penstock_after(void) {
  uint64_t ended = instructions();
  const uint32_t *at = painted, *end = __builtin_frame_address(0);
  while (at < end && *at == 0xC5C5C5C5) at++;
  printf("stack %lu bytes, %llu instructions\n", (unsigned long)((const char *)end - (const char *)at),
         (unsigned long long)(ended - began));
}
#endif
